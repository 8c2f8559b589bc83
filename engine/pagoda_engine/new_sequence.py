"""What an engine keeps of a request from its arrival on: its state, and how its tokens are chosen.

Knows requests, sampling and searches. Knows nothing of queues or blocks.
"""

from dataclasses import replace

from pagoda_engine.sampling import SamplingState
from pagoda_engine.sampling.beam_search import BeamSearch
from pagoda_engine.scheduler.beams import Beams
from pagoda_engine.scheduler.sequence import Sequence
from pagoda_engine.sequence_request import KvSource, SequenceRequest


def new_sequence(
    request: SequenceRequest,
    arrival: int,
    *,
    max_model_len: int,
    eos_token_ids: frozenset[int],
    adapter_slot: int,
) -> Sequence:
    """Return the sequence of a request that was checked.

    Args:
        request: as the caller gave it.
        arrival: how many sequences the engine had been given up to this one.
        max_model_len: tokens that it may have.
        eos_token_ids: of the model.
        adapter_slot: where its adapter is; NO_ADAPTER: it has none.
    """
    state, beams = _sampling(request, max_model_len, eos_token_ids)
    return Sequence(
        request,
        arrival,
        max_model_len=max_model_len,
        sampling_state=state,
        is_import_pending=request.kv_source is not KvSource.COMPUTE,
        adapter_slot=adapter_slot,
        beams=beams,
    )


def _sampling(
    request: SequenceRequest, max_model_len: int, eos_token_ids: frozenset[int]
) -> tuple[SamplingState, Beams | None]:
    """Return what chooses the sequence's tokens, and its search if it is one."""
    params = request.sampling
    state = SamplingState(params, eos_token_ids=eos_token_ids)
    if params.beam_search is None:
        return state, None
    search = BeamSearch(
        params.beam_search,
        max_tokens=min(params.max_tokens, max_model_len - len(request.prompt_token_ids)),
        min_tokens=params.min_tokens,
        stop_token_ids=state.stop_token_ids,
        num_logprobs=params.num_logprobs,
    )
    num_logprobs = max(search.num_candidates, params.num_logprobs or 0)
    params = replace(params, num_logprobs=num_logprobs, min_tokens=0)
    return SamplingState(params, eos_token_ids=eos_token_ids), Beams(search)
