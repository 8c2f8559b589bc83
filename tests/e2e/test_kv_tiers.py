"""Blocks that left the device come back from the kvstore unchanged; a damaged one never does."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.greedy_oracle import GreedyOracle
from support.stack import Stack, running_stack
from support.tiny_checkpoints import make_tiny_checkpoint

from .test_golden_tokens import MAX_TOKENS, complete, prompt_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPT = prompt_of(160, 2)
BLOCK_BYTES = 2 * 3 * 16 * 2 * 16 * 4  # the tiny Llama's, in float32


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


def push_out(stack: Stack, seed: int, rounds: int = 4) -> None:
    """Fill the workers' pools with other prompts, so that what was there before is evicted."""
    for i in range(rounds):
        complete(stack, prompt_of(200, seed + i))


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
        push_out(stack, seed=100)
        return Stopped(home, *complete(stack, PROMPT))


def test_blocks_come_back_from_cpu_memory(oracle: GreedyOracle, stopped: Stopped) -> None:
    assert stopped.tokens == oracle.greedy(PROMPT, MAX_TOKENS)
    assert stopped.receipt["cached_tokens"]["cpu"] > 0


def test_blocks_come_back_from_nvme_after_a_restart(
    checkpoint: Path, oracle: GreedyOracle, stopped: Stopped, tmp_path: Path
) -> None:
    shutil.copytree(stopped.home, tmp_path, dirs_exist_ok=True)
    with tiered(tmp_path, checkpoint, cpu_blocks=4000) as stack:
        tokens, receipt = complete(stack, PROMPT)
    assert tokens == oracle.greedy(PROMPT, MAX_TOKENS)
    assert receipt["cached_tokens"]["nvme"] > 0


def test_flipped_byte_on_nvme_is_found_recomputed_and_counted(
    checkpoint: Path, oracle: GreedyOracle, stopped: Stopped, tmp_path: Path
) -> None:
    shutil.copytree(stopped.home, tmp_path, dirs_exist_ok=True)
    segments = [
        path
        for path in (tmp_path / "kvstore").rglob("*")
        if path.is_file() and path.stat().st_size > BLOCK_BYTES
    ]
    for path in segments:  # one byte in the middle of every block's payload
        data = bytearray(path.read_bytes())
        for position in range(BLOCK_BYTES // 2, len(data), BLOCK_BYTES):
            data[position] ^= 0x40
        path.write_bytes(data)
    assert segments
    with tiered(tmp_path, checkpoint, cpu_blocks=4000) as stack:
        tokens, receipt = complete(stack, PROMPT)
        counted = stack.metric("kvstore", "pagoda_kvstore_bad_digests_total")
    assert tokens == oracle.greedy(PROMPT, MAX_TOKENS)
    assert receipt["cached_tokens"]["nvme"] < 160
    assert counted > 0
