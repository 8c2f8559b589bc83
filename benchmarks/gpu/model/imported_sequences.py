"""Sequences that go on from random KV, as if another worker had sent it.

Contexts of thousands of tokens are not prefilled for a measurement of decodes: the pool is filled
with random KV once, and sequences import it.
"""

from collections.abc import Sequence

import torch
from support.engine_driver import make_request

from pagoda_engine import Engine, KvSource, SamplingParams, SequenceRequest

BLOCK_SIZE = 16


def import_request(
    sequence_id: str, prompt: Sequence[int], sampling: SamplingParams
) -> SequenceRequest:
    """Return a request whose KV comes from elsewhere."""
    return make_request(
        sequence_id,
        prompt,
        block_size=BLOCK_SIZE,
        sampling=sampling,
        kv_source=KvSource.IMPORT,
    )


def start_imported(engine: Engine, requests: Sequence[SequenceRequest]) -> None:
    """Let sequences decode over what lies in their blocks."""
    for request in requests:
        engine.add(request)
    num_reserved = 0
    while num_reserved < len(requests):
        reserved = engine.step().reserved
        assert reserved, "an import was not admitted"
        num_reserved += len(reserved)
    for number, request in enumerate(requests):
        engine.import_finished(
            request.sequence_id,
            num_computed_tokens=len(request.prompt_token_ids),
            first_token_id=number,
        )


def random_tokens(length: int, vocab_size: int, seed: int) -> list[int]:
    """Return a prompt; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (length,), generator=generator).tolist()
    return tokens


def fill_random(tensor: torch.Tensor, seed: int) -> None:
    """Overwrite with normal numbers, which zeros are read faster than; done on return."""
    generator = torch.Generator(tensor.device).manual_seed(seed)
    for part in tensor.view(-1).split(1 << 28):
        part.normal_(generator=generator)
    if tensor.is_cuda:  # an engine's stream waits for nobody
        torch.cuda.synchronize(tensor.device)
