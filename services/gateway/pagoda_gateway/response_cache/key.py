"""What makes two requests equal, so that one's answer is the other's."""

import hashlib

from pagoda.rpc.v1.generate_pb2 import SamplingParams
from pagoda_gateway.openai.request_processor import ProcessedRequest
from pagoda_gateway.sequences.request import RequestIdentity
from pagoda_gateway.served_model import ServedModel


def answer_key(
    identity: RequestIdentity, model: ServedModel, processed: ProcessedRequest, *, is_seeded: bool
) -> str | None:
    """Return the digest of all that an answer depends on; None: another one could come out.

    The tenant, the model and its weights' fingerprint, the endpoint, every prompt's tokens and
    cache root (so its salt), every sampling parameter (grammars too) and what is wanted of
    the output. `is_seeded`: the client gave a seed; without one only greedy requests have a key.
    """
    options = processed.options
    is_greedy = all(sampling.temperature == 0 for sampling in processed.sampling)
    has_more_than_text = (
        options.embed
        or options.num_engine_logprobs is not None
        or options.num_scored_logprobs is not None
    )
    if has_more_than_text or not (is_seeded or is_greedy):
        return None
    digest = hashlib.blake2b(digest_size=32, person=b"pagoda.answer")
    for part in (
        identity.tenant, identity.endpoint, model.full_name, model.kv_identity.hex(), repr(options),
    ):  # fmt: skip
        _add(digest, part.encode())
    for prompt in processed.prompts:
        _add(digest, prompt.cache_root)
        _add(digest, repr(prompt.token_ids).encode())
    for sampling in processed.sampling:
        _add(digest, _written(sampling))
    return digest.hexdigest()


def _written(sampling: SamplingParams) -> bytes:
    if sampling.temperature == 0:  # a seed that was drawn, or given, says nothing then
        greedy = SamplingParams()
        greedy.CopyFrom(sampling)
        greedy.ClearField("seed")
        sampling = greedy
    return sampling.SerializeToString(deterministic=True)


def _add(digest: "hashlib.blake2b", part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "little"))
    digest.update(part)
