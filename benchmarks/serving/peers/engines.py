"""The engines in PEERS_HOME: where each one lies, and how it starts for one model folder.

All of them get the same: the threads, KV_BYTES of KV cache, sequences of up to MAX_MODEL_LEN
tokens, prefix caching, an OpenAI-speaking port on loopback. What else an engine needs to be at its
best on a CPU is set as well. Weights are converted once into `cache` where one reads other files.
A converter that ends early leaves nothing that would be taken for its result.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagoda_cli.up.ports import pick_port

KV_BYTES = 1 << 30
MAX_MODEL_LEN = 2048
MAX_NUM_SEQS = 64
MODEL_NAME = "bench"
CONVERT_SECONDS = 900.0
HERE = Path(__file__).parent
QUANTISED = {"int8": "Q8_0", "int4": "Q4_K_M"}
"""Of our formats, llama.cpp's of the same size."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


class NotInstalledError(Exception):
    """The engine is not in PEERS_HOME; the message is one line that names the missing file."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How one engine starts.

    Attributes:
        name: as reports call it.
        weights: what it computes with, where that is not the model's own bf16 file.
        keep_alive: False: it closes idle connections under load, so each request needs its own.
    """

    name: str
    command: list[str]
    port: int
    variables: Mapping[str, str] = field(default_factory=dict)
    weights: str = "bf16"
    keep_alive: bool = True


def vllm(
    home: Path, model: Path, cache: Path, num_threads: int, quantization: str = "none"
) -> Engine:
    """Return vLLM's CPU build."""
    only_dense("vLLM CPU", quantization)
    venv = home / "venv-vllm"
    program = installed("vLLM CPU", venv / "bin" / "vllm")
    # Its wheel was built to run with both; without them steps take longer.
    preload = [
        installed("vLLM CPU", home / "lib" / "libtcmalloc_minimal.so.4"),
        installed("vLLM CPU", venv / "lib" / "libiomp5.so"),
    ]
    cores = sorted(os.sched_getaffinity(0))[:num_threads]
    port = pick_port()
    command = [str(program), "serve", str(model), "--served-model-name", MODEL_NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS)]
    # Without it weak models spend their tokens on the white space that JSON allows.
    structured = '{"backend": "xgrammar", "disable_any_whitespace": true}'
    command += ["--enable-prefix-caching", "--structured-outputs-config", structured]
    variables = {
        **OFFLINE,
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "LD_PRELOAD": ":".join(map(str, preload)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
    }
    return Engine("vLLM CPU", command, port, variables)


def openvino(
    home: Path, model: Path, cache: Path, num_threads: int, quantization: str = "none"
) -> Engine:
    """Return OpenVINO GenAI behind `openvino_front.py`; it has no OpenAI server in its package."""
    only_dense("OpenVINO GenAI", quantization)
    venv = home / "venv-ov"
    python = installed("OpenVINO GenAI", venv / "bin" / "python")
    exporter = installed("OpenVINO GenAI", venv / "bin" / "optimum-cli")
    exported = cache / f"{model.name}-openvino-fp16"
    if is_older(exported / "openvino_model.bin", model):
        command = [str(exporter), "export", "openvino", "--model", str(model)]
        command += ["--task", "text-generation-with-past", "--weight-format", "fp16"]
        convert("OpenVINO GenAI", command, exported)
    port = pick_port()
    command = [str(python), "-P", str(HERE / "openvino_front.py"), "--model", str(exported)]
    command += ["--tokenizer", str(model / "tokenizer.json"), "--name", MODEL_NAME]
    command += ["--port", str(port), "--threads", str(num_threads)]
    command += ["--cache-gib", str(KV_BYTES >> 30), "--max-num-seqs", str(MAX_NUM_SEQS)]
    return Engine("OpenVINO GenAI", command, port, weights="fp16, computed as its plugin chooses")


def llama_cpp(
    home: Path, model: Path, cache: Path, num_threads: int, quantization: str = "none"
) -> Engine:
    """Return llama.cpp's own server."""
    program = installed("llama.cpp", home / "llama-build" / "bin" / "llama-server")
    kind = QUANTISED.get(quantization, "BF16")
    weights = gguf(home, model, cache, kind)
    port = pick_port()
    num_slots = MAX_NUM_SEQS // 2  # each has its own part of the KV cache: 32 run at once
    command = [str(program), "-m", str(weights), "--alias", MODEL_NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-webui", "--log-disable"]
    command += ["-c", str(num_slots * MAX_MODEL_LEN), "-np", str(num_slots)]
    command += ["-t", str(num_threads), "-tb", str(num_threads)]
    return Engine("llama.cpp", command, port, weights=kind, keep_alive=False)


def gguf(home: Path, model: Path, cache: Path, kind: str = "BF16") -> Path:
    """Return llama.cpp's file of a model, of what its quantiser calls `kind`.

    Raises:
        NotInstalledError: its converter is not in `home`, or its quantiser, where one is needed.
        RuntimeError: one of them failed.
    """
    python = installed("llama.cpp", home / "venv-llama" / "bin" / "python")
    source = installed("llama.cpp", home / "llama.cpp" / "convert_hf_to_gguf.py").parent
    dense = cache / f"{model.name}-bf16.gguf"
    if is_older(dense, model):
        command = [str(python), "-P", str(HERE / "to_gguf.py"), "--llama-cpp", str(source)]
        convert("llama.cpp", [*command, "--model", str(model), "--output"], dense)
    if kind == "BF16":
        return dense
    quantise = installed("llama.cpp", home / "llama-build" / "bin" / "llama-quantize")
    weights = cache / f"{model.name}-{kind}.gguf"
    if is_older(weights, model):
        convert("llama.cpp", [str(quantise), str(dense)], weights, kind)
    return weights


ENGINES: dict[str, Callable[[Path, Path, Path, int, str], Engine]] = {
    "vllm": vllm,
    "openvino": openvino,
    "llama-cpp": llama_cpp,
}


def only_dense(name: str, quantization: str) -> None:
    """Return if that is what is asked for.

    Raises:
        NotInstalledError: another format is.
    """
    if quantization != "none":
        raise NotInstalledError(f"{name} is skipped: it is not set up for {quantization} here")


def installed(name: str, path: Path) -> Path:
    """Return `path`.

    Raises:
        NotInstalledError: nothing is there.
    """
    if not path.exists():
        raise NotInstalledError(
            f"{name} is skipped: no {path} (docs/howto/compare.md says how to install it)"
        )
    return path


def is_older(converted: Path, model: Path) -> bool:
    """Whether `converted` is missing or older than the model's weights."""
    if not converted.is_file():
        return True
    return any(
        converted.stat().st_mtime < weights.stat().st_mtime
        for weights in model.glob("*.safetensors")
    )


def convert(name: str, command: list[str], output: Path, *further: str) -> None:
    """Run a converter, which is told where to write, then `further`.

    `output` is there only when done.

    Raises:
        RuntimeError: it failed or took too long; holds the end of what it printed.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="converting-", dir=output.parent) as folder:
        unfinished = Path(folder) / output.name
        run_converter(name, [*command, str(unfinished), *further])
        if output.is_dir():
            shutil.rmtree(output)
        unfinished.replace(output)


def run_converter(name: str, command: list[str]) -> None:
    """Run `command` to its end.

    Raises:
        RuntimeError: it failed or took too long; holds the end of what it printed.
    """
    done = subprocess.run(
        ["timeout", f"{CONVERT_SECONDS:.0f}", *command],
        env={**os.environ, **OFFLINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{name}: {command!r} ended with {done.returncode}:\n{done.stdout[-2000:]}"
        )
