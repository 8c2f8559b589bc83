"""What decodes feel of a prompt of 100,000 tokens beside them: the time between tokens.

One engine on the CPU, no network, a random Llama of one wide layer that takes 131,072 tokens:
computing 16 tokens at the end of such a prompt takes it many times what the first 16 take. The
engine learns what its steps take as it does in a worker. 32 streams run all the time, first alone.
A chunk there reads 25 MB of KV, which takes nearly as long as all decodes do: 1.4 ms for one token,
1.9 for four, 2.9 for eight, beside 1.6 for a step of 32 decodes (two cores).

    PYTHONPATH=tests python benchmarks/scheduling/long_prompt.py [--prompt-tokens 100000]
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.engine_driver import make_request

from pagoda_engine import Engine, EngineConfig, SamplingParams, StepStats, load_model
from pagoda_runtime.block_hash import hash_block
from pagoda_runtime.process.service import keep_loaded
from pagoda_worker.heartbeat.speed_model import SpeedModel

BLOCK_SIZE = 16
VOCAB_SIZE = 1024
STREAM_PROMPT_TOKENS = 64
STREAM_TOKENS = 400
TELL_STEPS = 32  # a worker tells its engine four times a second
WARM_STEPS = 600
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 512,
    "intermediate_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@dataclass
class Steps:
    """Of one state: what was felt, and what the engine did."""

    gaps: list[float] = field(default_factory=list)  # between tokens, of all streams
    chunks: list[int] = field(default_factory=list)  # of the long prompt
    schedule: list[float] = field(default_factory=list)


class Bench:
    """An engine that is kept busy with streams."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL))
        config = EngineConfig(
            block_size=BLOCK_SIZE,
            num_blocks=(options.prompt_tokens + options.streams * 1024) // BLOCK_SIZE,
            max_num_seqs=options.streams + 1,
            max_num_batched_tokens=options.budget,
            max_model_len=options.prompt_tokens + 16,
            dtype="bfloat16",
            load_format="dummy",
            num_threads=options.threads,
        )
        self.engine = Engine(load_model(folder, config), config, hash_block=hash_block)
        self.speed = SpeedModel()
        self._rng = random.Random(1)
        self._num_sent = self._num_steps = 0
        self._latest: dict[str, float] = {}  # stream -> when its latest token came
        for number in range(options.streams):
            self._send_stream(STREAM_TOKENS * (number + 1) // options.streams)
        for _ in range(WARM_STEPS):
            self.step(Steps())

    def send(self, name: str, num_prompt_tokens: int, num_tokens: int) -> None:
        """Queue a prompt that was never sent before."""
        prompt = [self._rng.randrange(10, VOCAB_SIZE) for _ in range(num_prompt_tokens)]
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        request = make_request(name, prompt, block_size=BLOCK_SIZE, sampling=sampling)
        self.engine.add(request)

    def _send_stream(self, num_tokens: int) -> None:
        self._num_sent += 1
        self.send(f"stream-{self._num_sent}", STREAM_PROMPT_TOKENS, num_tokens)

    def step(self, steps: Steps) -> bool:
        """Step once and note it. Returns whether the long prompt has its token."""
        result = self.engine.step()
        now = time.perf_counter()
        self._learn(result.stats)
        has_long = False
        for output in result.outputs:
            name = output.sequence_id
            if name == "long":
                has_long = True
                continue
            if (latest := self._latest.get(name)) is not None:
                steps.gaps.append(now - latest)
            self._latest[name] = now
            if output.finish_reason is not None:
                del self._latest[name]
                self._send_stream(STREAM_TOKENS)
        steps.chunks.append(result.stats.num_prefill_tokens)
        steps.schedule.append(result.stats.schedule_seconds)
        return has_long

    def _learn(self, stats: StepStats) -> None:
        self.speed.add(stats)
        self._num_steps += 1
        cost = self.speed.step_cost if self._num_steps % TELL_STEPS == 0 else None
        if cost is not None:
            self.engine.set_step_cost(cost)


def main() -> None:
    """Measure and print one line for each state."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompt-tokens", type=int, default=100_000)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--alone-steps", type=int, default=3000)
    parser.add_argument("--budget", type=int, default=512, help="tokens of a step at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most-seconds", type=float, default=130.0, help="of the long prompt")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
    keep_loaded()
    alone, beside = Steps(), Steps()
    for _ in range(options.alone_steps):
        bench.step(alone)
    started = time.perf_counter()
    bench.send("long", options.prompt_tokens, 1)
    is_over = False
    while not is_over and time.perf_counter() - started < options.most_seconds:
        is_over = bench.step(beside)
    seconds = time.perf_counter() - started
    for name, steps in (("alone", alone), ("beside", beside)):
        p50, p99, most = np.percentile(steps.gaps, (50, 99, 100)) * 1e3
        print(f"between tokens {name:6} p50 {p50:6.2f} ms, p99 {p99:6.2f} ms, most {most:6.1f} ms")
    p50, p99 = (np.percentile(beside.gaps, p) / np.percentile(alone.gaps, p) for p in (50, 99))
    print(f"beside / alone: p50 {p50:.2f}, p99 {p99:.2f}, in {len(beside.chunks)} steps")
    ends = np.quantile(np.arange(len(beside.chunks)), (0, 0.25, 0.5, 0.75, 1)).astype(int)
    parts = [beside.chunks[a:b] for a, b in itertools.pairwise(ends)]
    print(f"prompt tokens in a step, by quarters: {[round(float(np.mean(p)), 1) for p in parts]}")
    print(f"schedule, most: {1e3 * max(beside.schedule):.1f} ms")
    done = "first token" if is_over else f"NOT OVER, {sum(beside.chunks)} tokens done"
    print(f"{done} of {options.prompt_tokens} prompt tokens after {seconds:.1f} s")


if __name__ == "__main__":
    main()
