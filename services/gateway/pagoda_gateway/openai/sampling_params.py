"""From a body and a model to sampling parameters that the engine can run: budget, ranges, seeds.

Errors name the field, the value and the limit.
"""

import hashlib
import secrets
from typing import Any

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.errors import ContextLengthError, InvalidRequestError, shorten
from pagoda_gateway.openai.schemas.generation import MAX_LOGIT_BIAS, GenerationBody
from pagoda_gateway.served_model import ServedModel

_MAX_NAMED_KEYS = 50
_UINT64 = 2**64 - 1


def sampling_params(
    body: GenerationBody,
    model: ServedModel,
    *,
    max_tokens: int,
    num_logprobs: int | None,
) -> generate_pb2.SamplingParams:
    """Return the engine's parameters, without a seed (each sequence has its own)."""
    if body.min_tokens is not None and body.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"'min_tokens' is {body.min_tokens}; it must be <= max_tokens {max_tokens}",
            param="min_tokens",
        )
    stop_token_ids = body.stop_token_ids or []
    model.check_token_ids(stop_token_ids, param="stop_token_ids")
    return generate_pb2.SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=_or(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias, model),
        num_logprobs=num_logprobs,
        stop_token_ids=stop_token_ids,
        ignore_eos=bool(body.ignore_eos),
    )


def output_budget(
    num_prompt_tokens: int, wanted: int | None, default: int | None, model: ServedModel
) -> int:
    """Return max_tokens for one prompt.

    Args:
        num_prompt_tokens: of this prompt.
        wanted: what the client asked for.
        default: when it asked for nothing; None = what is left of the context.
        model: whose context is meant.

    Raises:
        ContextLengthError: the prompt leaves no room, or less than was asked for.
    """
    room = model.max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens, and the prompt "
            f"has {num_prompt_tokens}. Shorten the prompt.",
            param="messages" if default is None else "prompt",
        )
    if wanted is None:
        return room if default is None else min(default, room)
    if wanted > room:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens} and max_tokens asks for {wanted}. It can be {room} at most.",
            param="max_tokens",
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


def _logit_bias(bias: dict[str, Any] | None, model: ServedModel) -> dict[int, float]:
    """Return token id -> bias; raises one error that lists every bad entry."""
    entries = bias or {}
    if len(entries) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(
            f"'logit_bias' has {len(entries)} entries; the limit is {MAX_LOGIT_BIAS}",
            param="logit_bias",
        )
    problems, result = [], {}
    for key, value in entries.items():
        is_id = key.isascii() and key.isdigit() and len(key) < 10
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_id:
            problems.append(f"key {shorten(key, 40)} is not a token id")
        elif int(key) >= model.vocab_size:
            problems.append(f"token id {key} is outside the vocabulary of {model.vocab_size}")
        elif not is_number or not -100 <= value <= 100:
            problems.append(f"value {shorten(value, 40)} of token {key} is not within -100 and 100")
        else:
            result[int(key)] = float(value)
    if problems:
        more = len(problems) - _MAX_NAMED_KEYS
        listed = "; ".join(problems[:_MAX_NAMED_KEYS]) + (f"; and {more} more" if more > 0 else "")
        raise InvalidRequestError(f"'logit_bias': {listed}", param="logit_bias")
    return result


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
