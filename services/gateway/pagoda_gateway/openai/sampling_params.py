"""From a body and a model to sampling parameters that the engine can run: budget, ranges, seeds.

Errors name the field, the value and the limit.
"""

import hashlib
import secrets
from collections.abc import Sequence

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway.errors import ContextLengthError
from pagoda_gateway.openai.beam_search import beam_search
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.output_options import OutputOptions
from pagoda_gateway.served_model import ServedModel

DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")
"""What ends DRY's repetitions where the client does not say; the defaults are llama.cpp's."""

_UINT64 = 2**64 - 1


def sampling_params(
    body: GenerationBody,
    options: OutputOptions,
    *,
    max_tokens: int,
    grammar: str,
    bad_words: Sequence[Sequence[int]],
    dry_sequence_breakers: Sequence[int],
) -> generate_pb2.SamplingParams:
    """Return the engine's parameters, without a seed (each sequence has its own)."""
    return generate_pb2.SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=0.0 if options.is_search else _or(body.temperature, 1.0),
        top_k=max(0, body.top_k or 0),
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        logit_bias=logit_bias(body),
        num_logprobs=options.num_engine_logprobs,
        num_prompt_logprobs=options.num_scored_logprobs,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=bool(body.ignore_eos),
        grammar=grammar,
        logprob_token_ids=body.logprob_token_ids,
        allowed_token_ids=body.allowed_token_ids,
        bad_words=(generate_pb2.TokenSequence(token_ids=word) for word in bad_words),
        embed=options.embed,
        top_n_sigma=max(0.0, _or(body.top_n_sigma, 0.0)),
        typical_p=_or(body.typical_p, 1.0),
        xtc_threshold=_or(body.xtc_threshold, 0.1),
        xtc_probability=_or(body.xtc_probability, 0.0),
        dry_multiplier=_or(body.dry_multiplier, 0.0),
        dry_base=_or(body.dry_base, 1.75),
        dry_allowed_length=2 if body.dry_allowed_length is None else body.dry_allowed_length,
        dry_sequence_breakers=dry_sequence_breakers,
        lz_penalty=_or(body.lz_penalty, 0.0),
        beam_search=beam_search(body, options),
    )


def dry_sequence_breakers(body: GenerationBody) -> tuple[str, ...]:
    """Return the texts that end DRY's repetitions; none where DRY is off."""
    if not body.dry_multiplier:
        return ()
    breakers = body.dry_sequence_breakers
    return DRY_SEQUENCE_BREAKERS if breakers is None else tuple(breakers)


def logit_bias(body: GenerationBody) -> dict[int, float]:
    """Return token id -> bias."""
    return {int(key): float(value) for key, value in (body.logit_bias or {}).items()}


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
        )
    if wanted is None:
        return room if default is None else min(default, room)
    if wanted > room:
        raise ContextLengthError(
            f"This model's maximum context length is {model.max_model_len} tokens; the prompt has "
            f"{num_prompt_tokens} and {param} asks for {wanted}. It can be {room} at most.",
            param=param,
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


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
