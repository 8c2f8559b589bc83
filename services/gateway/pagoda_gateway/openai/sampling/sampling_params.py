"""From a body and a model to sampling parameters that the engine can run: budget, ranges, seeds.

Errors name the field, the value and the limit.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.errors import ContextLengthError
from pagoda_gateway.openai.sampling.beam_search import beam_search
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.served_model import ServedModel

DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")
"""What ends DRY's repetitions where the client does not say; the defaults are llama.cpp's."""

_UINT64 = 2**64 - 1
_DEFAULTS = generate_pb2.SamplingParams(
    temperature=1.0,
    top_p=1.0,
    repetition_penalty=1.0,
    typical_p=1.0,
    xtc_threshold=0.1,
    dry_base=1.75,
    dry_allowed_length=2,
)
# Fields of the body that are the engine's.
_FIELDS = frozenset(
    (
        "min_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
        "presence_penalty", "ignore_eos", "typical_p", "xtc_threshold", "xtc_probability",
        "dry_multiplier", "dry_base", "dry_allowed_length", "lz_penalty", "top_k", "top_n_sigma",
    )
)  # fmt: skip
_LEAST = 1e-30
"""Of numbers above 0: smaller ones are 0 in float32, which says off, or make logits infinite. None
of them can be told from this one by what is sampled."""
_RAISED_TO = {
    "top_k": 0,  # -1 says off, too
    "top_n_sigma": 0,
    "top_p": _LEAST,
    "typical_p": _LEAST,
    "repetition_penalty": _LEAST,
}
_TOKEN_IDS = frozenset(("stop_token_ids", "logprob_token_ids", "allowed_token_ids"))


def sampling_params(
    body: GenerationBody,
    options: OutputOptions,
    *,
    defaults: Mapping[str, Any],
    max_tokens: int,
    grammar: str,
    bad_words: Sequence[Sequence[int]],
    dry_sequence_breakers: Sequence[int],
) -> generate_pb2.SamplingParams:
    """Return the engine's parameters, without a seed (each sequence has its own).

    Few of them are sent: only those are looked at. `defaults` are the model's own, for what is not
    sent; what draws no token has none.
    """
    params = generate_pb2.SamplingParams()
    params.CopyFrom(_DEFAULTS)
    params.max_tokens = max_tokens
    values = {} if options.is_search or options.embed else dict(defaults)
    for name in _FIELDS & body.model_fields_set:
        if (value := getattr(body, name)) is not None:
            values[name] = value
    for name, value in values.items():
        setattr(params, name, max(value, _RAISED_TO[name]) if name in _RAISED_TO else value)
    for name in _TOKEN_IDS & body.model_fields_set:
        getattr(params, name).extend(getattr(body, name) or ())
    if options.is_search:
        params.temperature = 0.0
        params.beam_search.CopyFrom(beam_search(body, options))
    params.logit_bias.update(logit_bias(body))
    if options.num_engine_logprobs is not None:
        params.num_logprobs = options.num_engine_logprobs
    if options.num_scored_logprobs is not None:
        params.num_prompt_logprobs = options.num_scored_logprobs
    params.grammar, params.embed = grammar, options.embed
    for word in bad_words:
        params.bad_words.add(token_ids=word)
    params.dry_sequence_breakers.extend(dry_sequence_breakers)
    return params


def dry_sequence_breakers(body: GenerationBody) -> tuple[str, ...]:
    """Return the texts that end DRY's repetitions; none where DRY is off."""
    if not body.dry_multiplier:
        return ()
    breakers = body.dry_sequence_breakers
    return DRY_SEQUENCE_BREAKERS if breakers is None else tuple(breakers)


def logit_bias(body: GenerationBody) -> dict[int, float]:
    """Return token id -> bias."""
    if not body.logit_bias:
        return {}
    return {int(key): float(value) for key, value in body.logit_bias.items()}


def output_budget(
    num_prompt_tokens: int,
    wanted: int | None,
    default: int | None,
    model: ServedModel,
    *,
    param: str = "max_tokens",
    prompt_param: str = "prompt",
) -> int:
    """Return max_tokens for one prompt.

    Args:
        num_prompt_tokens: of this prompt.
        wanted: what the client asked for.
        default: when it asked for nothing; None = what is left of the context.
        model: whose context is meant.
        param: the field that says what the client asked for.
        prompt_param: the field that has the prompt.

    Raises:
        ContextLengthError: the prompt leaves no room, or less than was asked for.
    """
    room = model.max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens, and the prompt "
            f"has {num_prompt_tokens}. Shorten the prompt.",
            param=prompt_param,
            limit=model.max_model_len,
            num_prompt_tokens=num_prompt_tokens,
        )
    if wanted is None:
        return room if default is None else min(default, room)
    if wanted > room:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens} and {param} asks for {wanted}. It can be {room} at most.",
            param=param,
            limit=model.max_model_len,
            num_prompt_tokens=num_prompt_tokens,
            num_wanted=wanted,
        )
    return wanted


def sequence_seed(seed: int | None, *, sequence_index: int, num_choices: int) -> int:
    """Return one sequence's seed (unsigned 64 bit).

    A given seed belongs to each prompt: its first choice uses the seed itself, so a prompt samples
    the same in a batch and alone; further choices use one derived from (seed, choice). Without a
    seed each is drawn afresh.
    """
    if seed is None:
        return secrets.randbits(64)
    choice = sequence_index % num_choices
    unsigned = seed & _UINT64
    if choice == 0:
        return unsigned
    state = hashlib.blake2b(unsigned.to_bytes(8, "little"), digest_size=8, person=b"pagoda.seed")
    state.update(choice.to_bytes(8, "little"))
    return int.from_bytes(state.digest(), "little")
