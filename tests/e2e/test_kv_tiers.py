"""Blocks that left the device come back from the kvstore unchanged; a damaged one never does."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.greedy_oracle import GreedyOracle
from support.stack import running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

from .test_golden_tokens import MAX_TOKENS, complete, prompt_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = prompt_of(160, 2)
PUSHING_OUT = [prompt_of(200, seed) for seed in range(100, 104)]
"""Fill the workers' pools, so that what was there before is evicted."""
BLOCK_BYTES = 2 * 3 * 16 * 2 * 16 * 4  # the tiny Llama's, in float32
BAD_DIGESTS = "pagoda_kvstore_bad_digests_total"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Large enough that to fetch a prompt's blocks is cheaper than to compute them.
    return make_tiny_checkpoint(
        tmp_path_factory.mktemp("model"), "llama",
        hidden_size=512, intermediate_size=1024, num_hidden_layers=8,
    )  # fmt: skip


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> GreedyOracle:
    return GreedyOracle(checkpoint)


def tiered(home: Path, checkpoint: Path, cpu_blocks: int):
    """Workers whose pools hold little more than a prompt; a store of `cpu_blocks` in memory."""
    environ = {
        "PAGODA_MODEL": str(checkpoint),
        "PAGODA_DTYPE": "float32",
        "PAGODA_PREFILL_NUM_BLOCKS": "20",
        "PAGODA_DECODE_NUM_BLOCKS": "20",
        # At once, not when the worker idles: what comes next pushes them out.
        "PAGODA_PREFILL_WRITE_THROUGH": "all",
        "PAGODA_DECODE_WRITE_THROUGH": "all",
        "PAGODA_KVSTORE_CPU_BYTES": str(cpu_blocks * (BLOCK_BYTES + 512)),
    }
    return running_stack(home, environ)


@dataclass(frozen=True)
class Stopped:
    """A stack that was stopped with `PROMPT`'s blocks on NVMe, and what it answered of them."""

    home: Path
    tokens: list[int]
    receipt: dict[str, Any]


@pytest.fixture(scope="module")
def stopped(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """Asked for `PROMPT` twice, the second time when the workers had evicted its blocks."""
    home = tmp_path_factory.mktemp("stopped")
    with tiered(home, checkpoint, cpu_blocks=4000) as stack:
        complete(stack, PROMPT)
        for prompt in PUSHING_OUT:
            complete(stack, prompt)
        return Stopped(home, *complete(stack, PROMPT))


def test_blocks_come_back_from_cpu_memory(oracle: GreedyOracle, stopped: Stopped) -> None:
    assert stopped.tokens == oracle.greedy(PROMPT, MAX_TOKENS)
    assert stopped.receipt["cached_tokens"]["cpu"] > 0


def flip_a_byte_of_every_block(home: Path) -> None:
    """In the middle of its payload, on the disk, whoever has the file open."""
    segments = [
        path
        for path in (home / "kvstore").rglob("*")
        if path.is_file() and path.stat().st_size > BLOCK_BYTES
    ]
    assert segments
    for path in segments:
        with path.open("r+b") as file:
            for position in range(BLOCK_BYTES // 2, path.stat().st_size, BLOCK_BYTES):
                file.seek(position)
                (byte,) = file.read(1)
                file.seek(position)
                file.write(bytes([byte ^ 0x40]))


def test_blocks_come_back_from_nvme_after_a_restart_and_a_damaged_one_does_not(
    checkpoint: Path, oracle: GreedyOracle, stopped: Stopped
) -> None:
    """The damage is found, recomputed and counted."""
    with tiered(stopped.home, checkpoint, cpu_blocks=4000) as stack:
        tokens, receipt = complete(stack, PROMPT)
        counted_before = stack.metric("kvstore", BAD_DIGESTS)
        flip_a_byte_of_every_block(stopped.home)
        damaged_tokens, damaged_receipt = complete(stack, PUSHING_OUT[0])
        counted = stack.metric("kvstore", BAD_DIGESTS)
    assert tokens == oracle.greedy(PROMPT, MAX_TOKENS)
    assert receipt["cached_tokens"]["nvme"] > 0
    assert counted_before == 0
    assert damaged_tokens == oracle.greedy(PUSHING_OUT[0], MAX_TOKENS)
    assert damaged_receipt["cached_tokens"]["nvme"] == 0
    assert counted > 0
