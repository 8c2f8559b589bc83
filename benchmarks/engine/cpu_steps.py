"""Steps of the engine on a CPU beside what this machine can do at most: bytes read, bf16 products.

    OMP_WAIT_POLICY=PASSIVE PYTHONPATH=tests:benchmarks python \
        benchmarks/engine/cpu_steps.py [--threads 1 2] [--model experts-8k] [--quantization int8]

A random Llama of 126M parameters in bf16: decodes at batch 1, 8 and 32 with about 288 tokens of
context, prompts of 256 and 4,000 tokens. A step's floor is the larger of its bytes over the read
bandwidth and its operations over the matmul rate, both measured in this run. Medians; the least
beside them. Nothing else should run meanwhile; torch's threads that spin would take a processor.
"""

import argparse
import random
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from gpu.harness.ceilings import Ceilings
from gpu.model.roofline import Roofline, StepShape
from serving.baselines.memory_bandwidth import best_seconds
from serving.baselines.memory_bandwidth import measure as measure_bandwidth
from serving.running.models import model_folder
from support.engine_driver import hash_block, make_request

from pagoda_cli.bench.provenance import provenance
from pagoda_cli.bench.report import write_json
from pagoda_engine import Engine, EngineConfig, LoadedModel, SamplingParams, StepResult, load_model
from pagoda_kernels.native.packed_linear import PackedLinear, can_pack

ROOT = Path(__file__).parents[2]
BLOCK_SIZE = 16
CONTEXT = 256
NUM_STEPS = 64
BATCHES = (1, 8, 32)
PROMPTS = (256, 4000)
MATMUL_ROWS, MATMUL_WIDTH = 512, 2048


def matmul_flops_per_second() -> float:
    """Rate of a bf16 product: torch's or the native one's, whichever is better here."""
    x = torch.randn(MATMUL_ROWS, MATMUL_WIDTH).bfloat16()
    weight = torch.randn(MATMUL_WIDTH, MATMUL_WIDTH).bfloat16()
    flops = 2 * MATMUL_ROWS * MATMUL_WIDTH**2
    rates = [flops / best_seconds(lambda: torch.nn.functional.linear(x, weight))]
    if can_pack(weight):
        packed = PackedLinear(weight)
        rates.append(flops / best_seconds(lambda: packed(x)))
    return max(rates)


class Bench:
    """One model, its floors and the steps taken."""

    def __init__(self, model: LoadedModel, config: EngineConfig, ceilings: Ceilings) -> None:
        self._model, self._config, self._ceilings = model, config, ceilings
        self._roofline = Roofline(model.description, model.dtype)
        self._rng = random.Random(1)

    def decode(self, batch: int) -> dict[str, Any]:
        """Steps of `batch` sequences that all decode."""
        results = [r for r in self._run(batch, CONTEXT) if r.stats.num_decode_tokens == batch]
        middle = StepShape.decode(batch, CONTEXT + NUM_STEPS // 2)
        taken = [r.stats.forward_seconds + r.stats.sample_seconds for r in results[2:-2]]
        return self._row(f"decode, batch {batch}", taken, self._floor(middle), results)

    def prefill(self, num_tokens: int) -> dict[str, Any]:
        """One prompt, whatever the chunks."""
        taken, results, floor = [], list[StepResult](), 0.0
        for _ in range(5):
            results = [r for r in self._run(1, num_tokens) if r.stats.num_prefill_tokens]
            taken.append(sum(r.stats.forward_seconds for r in results))
        done = 0
        for result in results:
            done += result.stats.num_prefill_tokens
            floor += self._floor(StepShape((result.stats.num_prefill_tokens,), (done,)))
        return self._row(f"prompt of {num_tokens}", taken, floor, results)

    def _run(self, batch: int, num_tokens: int) -> list[StepResult]:
        engine = Engine(self._model, self._config, hash_block=hash_block)
        sampling = SamplingParams(max_tokens=NUM_STEPS, temperature=0.0, ignore_eos=True)
        for number in range(batch):
            prompt = [self._rng.randrange(10, 8000) for _ in range(num_tokens)]
            engine.add(make_request(str(number), prompt, block_size=BLOCK_SIZE, sampling=sampling))
        results = []
        while engine.has_work():
            results.append(engine.step())
        return results

    def _floor(self, step: StepShape) -> float:
        return self._roofline.floor_seconds(step, self._ceilings)

    def _row(
        self, name: str, taken: list[float], floor: float, results: list[StepResult]
    ) -> dict[str, Any]:
        return {
            "what": name,
            "ms": 1e3 * statistics.median(taken),
            "least_ms": 1e3 * min(taken),
            "floor_ms": 1e3 * floor,
            "to_floor": statistics.median(taken) / floor,
            "host_ms": 1e3 * statistics.median(r.stats.gap_seconds for r in results),
        }


def measure(folder: Path, num_threads: int, quantization: str) -> dict[str, Any]:
    """Return the ceilings and a row for each kind of step."""
    bandwidth = measure_bandwidth(num_threads)
    torch.set_num_threads(num_threads)
    ceilings = Ceilings(bandwidth["bytes_per_second"], matmul_flops_per_second(), 0.0)
    config = EngineConfig(
        num_blocks=2000,
        block_size=BLOCK_SIZE,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=512,
        max_model_len=4200,
        device="cpu",
        dtype="bfloat16",
        num_threads=num_threads,
        quantization=quantization,
    )
    bench = Bench(load_model(folder, config), config, ceilings)
    rows = [bench.decode(batch) for batch in BATCHES] + [bench.prefill(n) for n in PROMPTS]
    return {
        "num_threads": num_threads,
        "read_bytes_per_second": ceilings.copy_bytes_per_second,
        "matmul_flops_per_second": ceilings.matmul_flops_per_second,
        "rows": rows,
    }


def main() -> None:
    """Measure with each number of threads; print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--model", default="small-8k")
    parser.add_argument(
        "--quantization", default="none", help="none, int8 or int4; the floor is bf16's"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    folder = model_folder(options.model, ROOT / ".pagoda" / "bench-models")
    command = ["python", "benchmarks/engine/cpu_steps.py", *sys.argv[1:]]
    content: dict[str, Any] = {
        "provenance": provenance(command).as_dict(),
        "model": options.model,
        "quantization": options.quantization,
        "runs": [],
    }
    for num_threads in options.threads:
        run = measure(folder, num_threads, options.quantization)
        content["runs"].append(run)
        print(
            f"{num_threads} thread(s): {run['read_bytes_per_second'] / 1e9:.1f} GB/s, "
            f"{run['matmul_flops_per_second'] / 1e9:.0f} GFLOP/s"
        )
        for row in run["rows"]:
            print(
                f"  {row['what']}: {row['ms']:.2f} ms (least {row['least_ms']:.2f}), floor "
                f"{row['floor_ms']:.2f}: {row['to_floor']:.2f} times; host {row['host_ms']:.2f} ms"
            )
    path = options.output / f"{datetime.now(UTC):%Y-%m-%d}-cpu-steps.json"
    write_json(path, content)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
