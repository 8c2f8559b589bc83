"""Ranges that need the model or several fields."""

from collections.abc import Mapping
from typing import Any

import pytest

from pagoda.rpc.v1.generate_pb2 import SamplingParams
from pagoda_gateway.errors import ContextLengthError
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.sampling.sampling_params import (
    dry_sequence_breakers,
    output_budget,
    sampling_params,
    sequence_seed,
)
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.served_model import ServedModel


def body(**fields: Any) -> GenerationBody:
    return GenerationBody.model_validate({"model": "tiny", **fields})


def made(defaults: Mapping[str, Any] | None = None, **fields: Any) -> SamplingParams:
    options = output_options(body(**fields), num_logprobs=None)
    return sampling_params(
        body(**fields), options, defaults=defaults or {}, max_tokens=5, grammar="", bad_words=[],
        dry_sequence_breakers=[7, 9],
    )  # fmt: skip


def test_defaults_are_openais() -> None:
    params = made()
    assert (params.temperature, params.top_p, params.repetition_penalty) == (1, 1, 1)
    assert (params.top_k, params.min_p, params.max_tokens) == (0, 0, 5)
    assert not params.HasField("num_logprobs")


def test_a_models_defaults_count_where_the_request_says_nothing() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.5, "repetition_penalty": 1.1}
    params = made(defaults, top_p=None, min_p=0.25)
    assert params.temperature == pytest.approx(0.6)
    assert (params.top_k, params.top_p, params.min_p) == (20, 0.5, 0.25)
    own = made(defaults, temperature=0, top_k=0, top_p=1, repetition_penalty=1)
    assert own == made(temperature=0)
    assert made(defaults, top_k=-1).top_k == 0


def test_searches_draw_nothing_so_that_a_models_defaults_do_not_count() -> None:
    search = {"use_beam_search": True, "n": 2}
    assert made({"repetition_penalty": 1.5, "top_k": 5}, **search) == made(**search)


def test_top_k_minus_one_is_off() -> None:
    assert made(top_k=-1).top_k == 0


@pytest.mark.parametrize("name", ["top_p", "typical_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [5e-324, 1e-46, 1e-45])
def test_what_is_above_0_is_not_off_and_keeps_logits_finite(name: str, value: float) -> None:
    """In float32 the first two are 0, and a logit over the third is infinite."""
    assert getattr(made(**{name: value}), name) == pytest.approx(1e-30)


def test_truncations_and_penalties_of_repetitions_are_off() -> None:
    params = made()
    assert (params.top_n_sigma, params.typical_p, params.xtc_probability) == (0, 1, 0)
    assert (params.dry_multiplier, params.lz_penalty) == (0, 0)
    assert made(top_n_sigma=-1).top_n_sigma == 0


def test_dry_and_xtc_have_the_defaults_that_others_have() -> None:
    params = made(dry_multiplier=0.8, xtc_probability=0.5)
    assert params.dry_base == 1.75
    assert (params.dry_allowed_length, list(params.dry_sequence_breakers)) == (2, [7, 9])
    assert params.xtc_threshold == pytest.approx(0.1)
    assert dry_sequence_breakers(body(dry_multiplier=0.8)) == ("\n", ":", '"', "*")
    assert dry_sequence_breakers(body(dry_multiplier=0.8, dry_sequence_breakers=[])) == ()
    assert dry_sequence_breakers(body(dry_sequence_breakers=["x"])) == ()


def test_what_the_gateway_lets_through_an_engine_takes() -> None:
    assert made(top_k=2**31 - 1).top_k > 0
    with pytest.raises(ValueError, match="top_k"):
        body(top_k=2**31)


def test_logit_bias_is_by_token_id() -> None:
    params = made(logit_bias={"5": 1, "7": -2.5})
    assert dict(params.logit_bias) == {5: 1, 7: -2.5}


@pytest.mark.parametrize(
    ("num_prompt", "wanted", "default", "budget"),
    [(90, None, None, 10), (90, None, 16, 10), (10, None, 16, 16), (90, 10, None, 10)],
)
def test_output_budget(
    model: ServedModel, num_prompt: int, wanted: int | None, default: int | None, budget: int
) -> None:
    assert output_budget(num_prompt, wanted, default, model) == budget


@pytest.mark.parametrize(("num_prompt", "wanted"), [(100, None), (90, 11), (5000, 1)])
def test_more_than_the_context_is_refused(
    model: ServedModel, num_prompt: int, wanted: int | None
) -> None:
    with pytest.raises(ContextLengthError, match="100") as caught:
        output_budget(num_prompt, wanted, None, model)
    assert caught.value.code == "context_length_exceeded"


def test_the_field_that_asked_for_too_much_is_named(model: ServedModel) -> None:
    with pytest.raises(ContextLengthError, match="max_completion_tokens asks for 11") as caught:
        output_budget(90, 11, None, model, param="max_completion_tokens")
    assert caught.value.param == "max_completion_tokens"


def test_first_choice_uses_the_seed_itself() -> None:
    assert sequence_seed(7, sequence_index=0, num_choices=3) == 7
    assert sequence_seed(7, sequence_index=3, num_choices=3) == 7  # of the next prompt
    assert sequence_seed(-1, sequence_index=0, num_choices=1) == 2**64 - 1


def test_choices_have_different_seeds_that_repeat() -> None:
    seeds = [sequence_seed(7, sequence_index=i, num_choices=4) for i in range(4)]
    assert len(set(seeds)) == 4
    assert seeds == [sequence_seed(7, sequence_index=i, num_choices=4) for i in range(4)]


def test_without_a_seed_each_draw_is_new() -> None:
    assert len({sequence_seed(None, sequence_index=0, num_choices=1) for _ in range(8)}) == 8
