"""Measures what a decode step costs the host, with a model that computes nothing.

    python benchmarks/step_host_cost.py [--batch 64] [--steps 300]

The demo model's forward is replaced by a graph that returns the same logits at once; scheduling,
preparing, launching, sampling (greedy, on the CPU) and committing are the engine's own. Prints the
median microseconds of each part. On a GPU all but sampling happens while the device computes.
"""

import argparse
import statistics
from pathlib import Path

import torch

from pagoda_engine import Engine, EngineConfig, SamplingParams, SequenceRequest, load_model
from pagoda_engine.device import Forward

MODEL = Path(__file__).parents[1] / "demo" / "model"
PROMPT_TOKENS = 32
PARTS = ("schedule", "launch", "sample", "commit")


class SameLogits:
    """Replays nothing."""

    def capture(self, forward: Forward) -> Forward:
        """Run the forward once and return its logits for ever."""
        logits = forward()
        return lambda: logits


def measure(batch: int, num_steps: int) -> dict[str, float]:
    """Return the median microseconds of each part of a step."""
    max_len = PROMPT_TOKENS + num_steps + 2
    config = EngineConfig(
        num_blocks=batch * (max_len // 16 + 1),
        max_num_seqs=batch,
        max_num_batched_tokens=batch * PROMPT_TOKENS,
        max_model_len=max_len,
        graph_batch_sizes=(batch,),
        enable_prefix_caching=False,
    )
    model = load_model(MODEL, config)
    engine = Engine(
        model, config, hash_block=lambda parent, ids: bytes(16), graph_capture=SameLogits()
    )
    engine.capture()
    sampling = SamplingParams(max_tokens=num_steps + 1, temperature=0.0, ignore_eos=True)
    for number in range(batch):
        prompt = tuple(range(number, number + PROMPT_TOKENS))
        engine.add(SequenceRequest(str(number), prompt, (), bytes(16), sampling))
    engine.step()
    stats = [engine.step().stats for _ in range(num_steps)]
    assert all(s.is_graph and s.num_sequences == batch for s in stats)
    return {
        part: statistics.median(getattr(s, f"{part}_seconds") for s in stats) * 1e6
        for part in PARTS
    }


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = measure(options.batch, options.steps)
    print(f"batch {options.batch}: " + ", ".join(f"{k} {v:.0f} us" for k, v in parts.items()))


if __name__ == "__main__":
    main()
