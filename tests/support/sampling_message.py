"""Sampling parameters as a worker is sent them."""

from pagoda.rpc.v1 import generate_pb2
from pagoda_engine import BeamSearchParams, EarlyStopping, SamplingParams

_EARLY_STOPPING: dict[EarlyStopping, "generate_pb2.EarlyStopping.ValueType"] = {
    False: generate_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: generate_pb2.EARLY_STOPPING_AT_ONCE,
    "never": generate_pb2.EARLY_STOPPING_NEVER,
}


def sampling_message(params: SamplingParams) -> generate_pb2.SamplingParams:
    return generate_pb2.SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=dict(params.logit_bias),
        seed=params.seed,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
        logprob_token_ids=params.logprob_token_ids,
        allowed_token_ids=params.allowed_token_ids,
        bad_words=(generate_pb2.TokenSequence(token_ids=word) for word in params.bad_words),
        embed=params.embed,
        top_n_sigma=params.top_n_sigma,
        typical_p=params.typical_p,
        xtc_threshold=params.xtc_threshold,
        xtc_probability=params.xtc_probability,
        dry_multiplier=params.dry_multiplier,
        dry_base=params.dry_base,
        dry_allowed_length=params.dry_allowed_length,
        dry_sequence_breakers=params.dry_sequence_breakers,
        lz_penalty=params.lz_penalty,
        beam_search=_beam_search_message(params.beam_search),
    )


def _beam_search_message(params: BeamSearchParams | None) -> generate_pb2.BeamSearch | None:
    if params is None:
        return None
    return generate_pb2.BeamSearch(
        width=params.width,
        length_penalty=params.length_penalty,
        early_stopping=_EARLY_STOPPING[params.early_stopping],
    )
