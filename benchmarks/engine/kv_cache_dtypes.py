"""Measures KV of one byte an element on a CPU: accuracy and speed, beside KV as activations.

    PYTHONPATH=tests:benchmarks python benchmarks/engine/kv_cache_dtypes.py accuracy
    PYTHONPATH=tests:benchmarks python benchmarks/engine/kv_cache_dtypes.py speed \
        [--threads 1] [--seconds 20] [--model small-8k]

Accuracy: of the demo model on the dialogues that its training held out (needs transformers), and of
a random Llama, as in `quantised_checkpoints.py`. Errors are norms of logits against fp32 with plain
KV. Speed: bf16 steps of a model with the shape of a Qwen2.5 of 0.5 billion parameters and random
weights, or of one of `serving.models`; the least of steps that take turns. `rows` is `auto` with KV
token by token, not packed as native attention multiplies it. Scales are those that a checkpoint
without any gets.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from quantised_weights import CPU, DEMO, SHAPE, RandomWeights, Step, held_out_documents
from serving.running.models import model_folder
from support.random_tokens import random_tokens
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda_engine import EngineConfig, LoadedModel, load_model
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.kv.dtype import KV_CACHE_DTYPES, resolve_kv_dtype
from pagoda_engine.models.kv.measure import settle_scales

RANDOM_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
STEPS = {
    "1 decode, context 256": (1, 1, 256),
    "1 decode, context 4096": (1, 1, 4096),
    "8 decodes, context 1088": (8, 1, 1088),
    "8 decodes, context 4096": (8, 1, 4096),
    "32 decodes, context 288": (32, 1, 288),
    "prefill of 256": (1, 256, 256),
}


def logits_of(model: LoadedModel, ids: list[int]) -> torch.Tensor:
    """``[T, V]`` fp32."""
    step = Step(model.decoder, model.kv_dtype, 1, len(ids), len(ids))
    step.ids.copy_(torch.tensor(ids))
    return step.run(None).float()


def compare(folder: Path, documents: Sequence[list[int]]) -> None:
    """Print a row for every dtype."""
    exact = load_model(folder, EngineConfig(dtype="float32"))
    num_tokens = sum(len(document) - 1 for document in documents)
    for dtype in ("float32", "bfloat16"):
        for name in KV_CACHE_DTYPES:
            model = load_model(folder, EngineConfig(dtype=dtype, kv_cache_dtype=name))
            nats = error = norm = 0.0
            num_same = 0
            for document in documents:
                labels = torch.tensor(document[1:])
                found, wanted = (logits_of(m, document[:-1]) for m in (model, exact))
                nats += F.cross_entropy(found, labels, reduction="sum").item()
                error += (found - wanted).square().sum().item()
                norm += (wanted - wanted.mean(1, keepdim=True)).square().sum().item()
                num_same += int((found.argmax(1) == wanted.argmax(1)).sum())
            print(
                f"| {dtype} | {name} | {math.exp(nats / num_tokens):.2f} | "
                f"{100 * math.sqrt(error / norm):.2f} % | {100 * num_same / num_tokens:.1f} % |",
                flush=True,
            )


def accuracy() -> None:
    header = (
        "| dtype | KV | perplexity | logit error | same likeliest token |\n|---|---|---|---|---|"
    )
    print(f"demo model\n\n{header}")
    compare(DEMO / "model", held_out_documents())
    print(f"\nrandom model\n\n{header}")
    with tempfile.TemporaryDirectory() as folder:
        compare(
            make_tiny_checkpoint(Path(folder), "llama", **RANDOM_SIZES),
            [random_tokens(length) for length in (200, 90, 33)],
        )


def make_decoders(folder: Path | None) -> dict[str, tuple[Decoder, torch.dtype]]:
    """Return a decoder for each dtype of KV, and the dtype."""
    decoders = {}
    for name in KV_CACHE_DTYPES:
        if folder is not None:
            model = load_model(folder, EngineConfig(dtype="bfloat16", kv_cache_dtype=name))
            decoders[name] = model.decoder, model.kv_dtype
            continue
        kv_dtype = resolve_kv_dtype(name, SHAPE, torch.bfloat16)
        weights = RandomWeights(torch.bfloat16)
        decoder = build_decoder(SHAPE, weights, max_positions=4096, device=CPU, kv_dtype=kv_dtype)
        settle_scales(decoder, kv_dtype, CPU)
        decoders[name] = decoder, kv_dtype
    return decoders


def speed(seconds: float, folder: Path | None) -> None:
    """Print the least milliseconds of each step."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    decoders = make_decoders(folder)
    for step_name, (num_seqs, num_new, context) in STEPS.items():
        steps = {
            name: Step(decoder, kv_dtype, num_seqs, num_new, context)
            for name, (decoder, kv_dtype) in decoders.items()
        }
        steps["rows"] = Step(*decoders["auto"], num_seqs, num_new, context, in_rows=True)
        least = dict.fromkeys(steps, math.inf)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, step in steps.items():
                started = clock()
                step.run(step.last_rows)
                least[name] = min(least[name], clock() - started)
        print(step_name + ": " + ", ".join(f"{n} {t * 1e3:.2f} ms" for n, t in least.items()))


def main() -> None:
    """Print tables or a few lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["accuracy", "speed"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--model", default="", help="of serving.models, or a folder; for speed")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "speed":
        cache = Path(__file__).parents[2] / ".pagoda" / "bench-models"
        speed(options.seconds, model_folder(options.model, cache) if options.model else None)
    else:
        accuracy()


if __name__ == "__main__":
    main()
