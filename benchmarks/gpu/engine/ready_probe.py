"""A process that does what a worker does before it is ready, without its network, and says when.

    python benchmarks/gpu/engine/ready_probe.py FOLDER DEVICE DTYPE

Prints one JSON line of unix times: weights loaded, every kernel run once, graphs captured, a first
sequence computed.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpu.harness.importable import missing_folders

sys.path.extend(missing_folders())

from support.engine_driver import hash_block

from gpu.harness.orphans import end_with_parent
from pagoda_engine import Engine, EngineConfig, load_model
from pagoda_engine.start_up.warm_up import warm_engine, warm_kernels

MAX_MODEL_LEN = 8192


def main(arguments: list[str]) -> int:
    """Get ready; returns the exit status."""
    folder, device, dtype = arguments
    at: dict[str, float] = {"imported": time.time()}
    # Limits of a worker as it is delivered.
    config = EngineConfig(device=device, dtype=dtype, max_model_len=MAX_MODEL_LEN)
    model = load_model(Path(folder), config)
    at["loaded"] = time.time()
    warm_kernels(model, config)
    at["warm"] = time.time()
    engine = Engine(model, config, hash_block=hash_block)
    at["made"] = time.time()
    num_graphs = 0

    def progress(done: int, total: int) -> None:
        nonlocal num_graphs
        num_graphs = total

    engine.capture(progress)
    at["captured"] = time.time()
    warm_engine(engine)
    at["ready"] = time.time()
    print(json.dumps({**at, "num_graphs": num_graphs}), flush=True)
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
