import math
from typing import Any

import pytest
from support.engine_driver import make_request

from pagoda_engine import (
    BeamSearchParams,
    EngineConfig,
    InvalidSequenceError,
    SamplingParams,
    SequenceRequest,
)
from pagoda_engine.validation import check_request

CONFIG = EngineConfig(block_size=4, num_blocks=10, max_model_len=50)


def check(request: SequenceRequest, config: EngineConfig = CONFIG) -> None:
    check_request(request, config, max_model_len=50, vocab_size=100)


def request(num_prompt_tokens: int = 9, **fields: Any) -> SequenceRequest:
    return make_request("a", list(range(num_prompt_tokens)), block_size=4, **fields)


def test_sound_request_passes() -> None:
    check(request())


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": math.inf}, "repetition_penalty"),
        ({"frequency_penalty": math.nan}, "frequency_penalty"),
        ({"presence_penalty": math.inf}, "presence_penalty"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"logit_bias": {100: 1.0}}, "a token in logit_bias"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"num_logprobs": -1}, "num_logprobs"),
        ({"num_logprobs": 101}, "num_logprobs"),
        ({"logprob_token_ids": (1,)}, "logprob_token_ids"),
        ({"logprob_token_ids": (100,), "num_logprobs": 1}, "a token in logprob_token_ids"),
        ({"allowed_token_ids": (3, 100)}, "a token in allowed_token_ids"),
        ({"bad_words": ((3,), (5, 100))}, "a token in bad_words"),
        ({"bad_words": ((3,), ())}, "bad_words"),
        ({"top_n_sigma": -1.0}, "top_n_sigma"),
        ({"top_n_sigma": math.nan}, "top_n_sigma"),
        ({"typical_p": 0.0}, "typical_p"),
        ({"typical_p": 1.1}, "typical_p"),
        ({"xtc_threshold": -0.1}, "xtc_threshold"),
        ({"xtc_probability": 1.1}, "xtc_probability"),
        ({"dry_multiplier": math.inf}, "dry_multiplier"),
        ({"dry_base": 0.9}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_allowed_length": 51}, "dry_allowed_length"),
        ({"dry_sequence_breakers": (100,)}, "a token in dry_sequence_breakers"),
        ({"lz_penalty": -0.1}, "lz_penalty"),
        ({"num_prompt_logprobs": -1}, "num_prompt_logprobs"),
        ({"num_prompt_logprobs": 101}, "num_prompt_logprobs"),
        ({"num_prompt_logprobs": 0, "max_tokens": -1}, "max_tokens"),
        ({"stop_token_ids": (100,)}, "a token in stop_token_ids"),
    ],
)
def test_sampling_parameter_out_of_range_is_named(params: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidSequenceError) as error:
        check(request(sampling=SamplingParams(**{"max_tokens": 8, **params})))
    assert error.value.what == what


@pytest.mark.parametrize("token", [-1, 100])
def test_token_outside_the_vocabulary_is_named(token: int) -> None:
    with pytest.raises(InvalidSequenceError) as error:
        check(SequenceRequest("a", (1, token), (), bytes(16), SamplingParams(max_tokens=1)))
    assert error.value.value == token
    assert str(error.value) == f"a token in prompt_token_ids is {token}, must be in [0, 100)"


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidSequenceError, match="number of prompt tokens is 0"):
        check(request(0))


def test_prompt_must_leave_room_for_a_token() -> None:
    roomy = EngineConfig(block_size=4, num_blocks=100)
    check(request(49), roomy)
    with pytest.raises(InvalidSequenceError, match="below max_model_len 50"):
        check(request(50), roomy)


def test_output_that_is_complete_already_is_refused() -> None:
    params = SamplingParams(max_tokens=2)
    with pytest.raises(InvalidSequenceError, match="below max_tokens 2"):
        check(request(sampling=params, output_token_ids=(1, 2)))


@pytest.mark.parametrize("num_hashes", [1, 3])
def test_number_of_hashes_must_fit_the_block_size(num_hashes: int) -> None:
    sound = request()
    wrong = SequenceRequest(
        "a", sound.prompt_token_ids, (bytes(16),) * num_hashes, bytes(16), sound.sampling
    )
    with pytest.raises(InvalidSequenceError, match="number of block_hashes"):
        check(wrong)
    check(wrong, EngineConfig(block_size=4, num_blocks=10, enable_prefix_caching=False))


def test_hash_of_another_size_is_refused() -> None:
    with pytest.raises(InvalidSequenceError, match="size of a block hash is 5, must be 16"):
        check(request(cache_root=b"short"))


@pytest.mark.parametrize(("max_tokens", "is_possible"), [(32, True), (33, False)])
def test_sequence_must_fit_the_pool_to_its_end(max_tokens: int, is_possible: bool) -> None:
    # 9 prompt tokens and max_tokens - 1 of the output need KV; the pool holds 40.
    sequence = request(9, sampling=SamplingParams(max_tokens=max_tokens))
    if is_possible:
        check(sequence)
        return
    with pytest.raises(InvalidSequenceError) as error:
        check(sequence)
    assert (error.value.value, error.value.limit) == (11, "at most 10")


def test_prefill_only_needs_room_for_its_prompt_only() -> None:
    check(request(9, sampling=SamplingParams(max_tokens=1000), prefill_only=True))


def searched(width: int = 2, length_penalty: float = 1.0, **fields: Any) -> SamplingParams:
    values = {"max_tokens": 8, "temperature": 0.0, **fields}
    return SamplingParams(**values, beam_search=BeamSearchParams(width, length_penalty))


def test_sound_search_passes() -> None:
    check(request(sampling=searched(num_logprobs=2, min_tokens=3, stop_token_ids=(5,))))


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"width": 0}, "width"),
        ({"width": 51}, r"width .* in \[1, 50\]"),
        ({"length_penalty": 10.5}, "length_penalty"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"temperature": 0.1}, "temperature"),
        ({"stop_token_ids": tuple(range(26))}, "stop_token_ids"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"lz_penalty": 0.1}, "lz_penalty"),
        ({"logit_bias": {1: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": (1,)}, "allowed_token_ids"),
        ({"bad_words": ((1,),)}, "bad_words"),
        ({"num_prompt_logprobs": 1}, "num_prompt_logprobs"),
        ({"num_logprobs": 1, "logprob_token_ids": (1,)}, "logprob_token_ids"),
    ],
)
def test_what_a_search_cannot_have_is_refused(params: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidSequenceError, match=what):
        check(request(sampling=searched(**params)))


def test_a_search_goes_on_after_nothing_and_is_not_sent_elsewhere() -> None:
    with pytest.raises(InvalidSequenceError, match="output tokens"):
        check(request(sampling=searched(), output_token_ids=(1,)))
    with pytest.raises(InvalidSequenceError, match="prefill_only"):
        check(request(sampling=searched(), prefill_only=True))


def test_the_blocks_of_all_beams_must_fit_the_pool() -> None:
    """9 prompt tokens have 2 full blocks; 15 more tokens are 4 blocks of each beam."""
    check(request(sampling=searched(2, max_tokens=16)))
    with pytest.raises(
        InvalidSequenceError, match=r"3 beams of 25 tokens may need is 14.*at most 10"
    ):
        check(request(sampling=searched(3, max_tokens=16)))
