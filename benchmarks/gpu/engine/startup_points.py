"""From the start of a process until it could serve: imports, weights, kernels, pool, graphs.

The weights lie on the local disk in Hugging Face layout. They were written just before, so they are
in the page cache, and the kernels are in Triton's: a worker that is started again.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from gpu.harness.points import Setting, Subject
from gpu.harness.rows import Row
from gpu.model.random_model import RandomWeights
from gpu.model.shapes import SHAPES, with_layers
from gpu.model.shared_weights import SharedWeights, transformers_config
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.weights.num_bytes import weight_bytes

READY_SECONDS = 55.0
PROBE = Path(__file__).with_name("ready_probe.py")


class CheckpointSubject(Subject):
    """A model folder with the first layers of a shape."""

    def __init__(
        self, setting: Setting, shape_name: str, num_layers: int, dtype: torch.dtype
    ) -> None:
        self.setting = setting
        self.full_shape = SHAPES[shape_name]
        self.num_layers = num_layers
        self.dtype = dtype
        self.folder = setting.folder / "checkpoint"
        self.close()
        shape = with_layers(self.full_shape, num_layers)
        device = torch.device(setting.device)
        weights = SharedWeights(RandomWeights(dtype, device, setting.seed))
        build_decoder(shape, weights, max_positions=1, device=device)
        started = time.perf_counter()
        self.num_bytes = write_checkpoint(self.folder, shape, weights)
        self.facts: Row = {
            "num_bytes": self.num_bytes,
            "num_layers": num_layers,
            "write_seconds": time.perf_counter() - started,
        }

    def close(self) -> None:
        """Remove the folder, an earlier process's too."""
        shutil.rmtree(self.folder, ignore_errors=True)


def ready_row(subject: CheckpointSubject) -> Row:
    """Start a process that loads the folder and gets ready; returns the times of its stages.

    ``predicted_full_seconds`` is for all layers: loading grows with the bytes, capturing with the
    layers, the rest stays.
    """
    device, dtype = subject.setting.device, str(subject.dtype).removeprefix("torch.")
    command = [sys.executable, str(PROBE), str(subject.folder), device, dtype]
    started = time.time()
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=READY_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    at = json.loads(done.stdout.splitlines()[-1])
    imports = at["imported"] - started
    load = at["loaded"] - at["imported"]
    capture = at["captured"] - at["made"]
    ready = at["ready"] - started
    num_layers = subject.full_shape.num_layers
    full_bytes = weight_bytes(subject.full_shape, subject.dtype)
    more = load * (full_bytes / subject.num_bytes - 1)
    more += capture * (num_layers / subject.num_layers - 1)
    return {
        "num_bytes": subject.num_bytes,
        "import_seconds": imports,
        "load_seconds": load,
        "load_gigabytes_per_second": subject.num_bytes / load / 1e9,
        "warm_seconds": at["warm"] - at["loaded"],
        "pool_seconds": at["made"] - at["warm"],
        "capture_seconds": capture,
        "num_graphs": at["num_graphs"],
        "first_sequence_seconds": at["ready"] - at["captured"],
        "ready_seconds": ready,
        "full_bytes": full_bytes,
        "predicted_full_seconds": ready + more,
        "goal": 60.0,
        "meets_goal": ready + more <= 60.0,
    }


def write_checkpoint(folder: Path, shape: DecoderDescription, weights: SharedWeights) -> int:
    """Write the folder; returns the bytes of its weights."""
    from safetensors.torch import save_file  # with transformers, which a host may lack

    config = transformers_config(shape)
    config.architectures = [shape.architecture]
    config.save_pretrained(folder)
    tensors = {name: tensor.cpu().clone() for name, tensor in weights.tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in tensors.values())
