"""How fast this machine reads memory: the floor under a decode step, which reads every weight once.

Two readers far larger than any cache, the best of several passes: a float32 sum and a matrix-vector
product (torch). The faster one counts. Prints JSON.

    python benchmarks/serving/baselines/memory_bandwidth.py --threads 1
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

NUM_BYTES = 1 << 30
NUM_PASSES = 7


def best_seconds(read: Callable[[], Any]) -> float:
    """Return the fastest of NUM_PASSES passes; the first one, not counted, touches the pages."""
    read()
    seconds = []
    for _ in range(NUM_PASSES):
        start = time.perf_counter()
        read()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(num_threads: int) -> dict[str, Any]:
    """Return bytes per second of each reader."""
    torch.set_num_threads(num_threads)
    values = torch.ones(NUM_BYTES // 4)
    matrix, vector = values.view(-1, 8192), torch.ones(8192)
    speeds = {
        "sum": NUM_BYTES / best_seconds(lambda: values.sum()),
        "matrix-vector": NUM_BYTES / best_seconds(lambda: torch.mv(matrix, vector)),
    }
    fastest = max(speeds, key=lambda name: speeds[name])
    return {
        "num_threads": num_threads,
        "bytes_per_second": speeds[fastest],
        "reader": fastest,
        "all": speeds,
        "method": f"best of {NUM_PASSES} passes over {NUM_BYTES >> 20} MiB of float32, torch",
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    print(json.dumps(measure(parser.parse_args().threads)))


if __name__ == "__main__":
    main()
