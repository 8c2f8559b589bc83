"""Measures quantised weights on a CPU: accuracy, memory, speed, each beside the dense model.

    python benchmarks/engine/quantised_weights.py accuracy
    python benchmarks/engine/quantised_weights.py memory
    python benchmarks/engine/quantised_weights.py speed \
        [--threads 1] [--seconds 20] [--dtype float32]

Accuracy is that of the demo model on the dialogues that its training held out (needs transformers),
in the engine's own forward. Memory and speed are those of a model with the shape of a Qwen2.5 of
0.5 billion parameters and random weights. Speed: the least of many steps that take turns, so that
whatever else runs hits all alike; with one thread its CPU time, which does not count waiting.
"""

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from pagoda_engine import EngineConfig, load_model
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.decoder import Decoder
from pagoda_engine.models.description import DecoderDescription
from pagoda_engine.models.quantization import QUANTIZATIONS
from pagoda_engine.models.rope_scaling import RopeDescription
from pagoda_engine.models.weights.num_bytes import weight_bytes
from pagoda_engine.start_up.host_memory import give_back_freed
from pagoda_kernels import plan_attention

DEMO = Path(__file__).parents[2] / "demo"
CPU = torch.device("cpu")
BLOCK_SIZE = 16
SHAPE = DecoderDescription(
    architecture="Qwen2ForCausalLM",
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    max_position_embeddings=4096,
    norm_eps=1e-6,
    rope=RopeDescription(theta=1e6),
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
    qk_norm="none",
    sliding_windows=(None,) * 24,
    tie_word_embeddings=True,
    dtype="bfloat16",
)
STEPS = {"1 decode": (1, 1), "4 decodes": (4, 1), "16 decodes": (16, 1), "prefill of 256": (1, 256)}
CONTEXT = 256


class RandomWeights:
    """The same for every format."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(1)

    def take(
        self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """See `WeightSource`."""
        drawn = torch.randn(shape, generator=self._generator)
        return (1 + 0.1 * drawn if len(shape) == 1 else drawn * shape[-1] ** -0.5).to(
            dtype or self._dtype
        )


def logits_of(decoder: Decoder, dtype: torch.dtype, ids: list[int]) -> torch.Tensor:
    """``[T, V]`` fp32."""
    step = Step(decoder, dtype, 1, len(ids), len(ids))
    step.ids.copy_(torch.tensor(ids))
    return step.run(None).float()


class Step:
    """One step over blocks of its own: as many sequences of one length."""

    def __init__(
        self,
        decoder: Decoder,
        dtype: torch.dtype,
        num_seqs: int,
        num_new: int,
        context: int,
        *,
        in_rows: bool = False,
    ) -> None:
        """Let KV lie as an engine has it, or token by token all the same."""
        shape, each = decoder.description, -(-context // BLOCK_SIZE)
        layout = decoder.kv_layout(BLOCK_SIZE, dtype)
        if in_rows:
            layout = replace(layout, is_packed=False)
        self._decoder = decoder
        self._kv_cache = KvCache(layout, num_seqs * each, CPU)
        self._kv_cache.tensor.zero_()
        self._batch = plan_attention(
            seqlens_q=[num_new] * num_seqs,
            context_lens=[context] * num_seqs,
            block_tables=[list(range(i * each, (i + 1) * each)) for i in range(num_seqs)],
            block_size=BLOCK_SIZE,
            device=CPU,
        )
        self.ids = torch.randint(shape.vocab_size, (num_seqs * num_new,))
        self._positions = torch.arange(context - num_new, context).repeat(num_seqs)
        self.last_rows = torch.arange(num_new - 1, num_seqs * num_new, num_new)

    @torch.inference_mode()
    def run(self, rows: torch.Tensor | None) -> torch.Tensor:
        """Return logits of some rows, or of all."""
        arguments = self.ids, self._positions, self._batch, self._kv_cache, rows
        return self._decoder.forward(*arguments)


def held_out_documents() -> list[list[int]]:
    """Token ids of the dialogues that the demo model has not seen."""
    sys.path.insert(0, str(DEMO))
    from corpus import held_out_dialogues, read_speeches, split_held_out
    from train import HELD_OUT_FRACTION, encode
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    _, held_out = split_held_out(read_speeches(), HELD_OUT_FRACTION)
    return [encode(tokenizer, dialogue) for dialogue in held_out_dialogues(held_out)]


def accuracy() -> None:
    documents = held_out_documents()
    num_tokens = sum(len(document) - 1 for document in documents)
    exact = load_model(DEMO / "model", EngineConfig(dtype="float32")).decoder
    print("| format | dtype | nats/token | perplexity | logit error | same likeliest token |")
    print("|---|---|---|---|---|---|")
    for name in QUANTIZATIONS:
        for dtype in ("float32", "bfloat16"):
            model = load_model(DEMO / "model", EngineConfig(dtype=dtype, quantization=name))
            nats = error = norm = 0.0
            num_same = 0
            for document in documents:
                labels = torch.tensor(document[1:])
                found = logits_of(model.decoder, model.dtype, document[:-1])
                wanted = logits_of(exact, torch.float32, document[:-1])
                nats += F.cross_entropy(found, labels, reduction="sum").item()
                error += (found - wanted).square().sum().item()
                norm += (wanted - wanted.mean(1, keepdim=True)).square().sum().item()
                num_same += int((found.argmax(1) == wanted.argmax(1)).sum())
            loss = nats / num_tokens
            print(
                f"| {name} | {dtype} | {loss:.4f} | {math.exp(loss):.2f} | "
                f"{100 * math.sqrt(error / norm):.2f} % | {100 * num_same / num_tokens:.1f} % |"
            )


def build(name: str, dtype: torch.dtype) -> Decoder:
    return build_decoder(
        SHAPE,
        RandomWeights(dtype),
        max_positions=4096,
        device=CPU,
        quantization=QUANTIZATIONS[name],
    )


def resident_bytes() -> int:
    """Memory of this process that is in use, libraries included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_of(name: str) -> tuple[int, float]:
    """Bytes that a decoder takes, and the seconds that making it took."""
    before, started = resident_bytes(), time.perf_counter()
    decoder = build(name, torch.bfloat16)
    seconds = time.perf_counter() - started
    give_back_freed()  # as `load_engine` does
    assert decoder.description is SHAPE
    return resident_bytes() - before, seconds


def memory() -> None:
    num_mib = weight_bytes(SHAPE, torch.bfloat16) / 2**20
    print(f"weights in bf16, tied ones once: {num_mib:.0f} MiB")
    for name in QUANTIZATIONS:  # each in a process of its own
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            num_bytes, seconds = pool.apply(memory_of, (name,))
        print(f"{name}: {num_bytes / 2**20:.0f} MiB, drawn and packed in {seconds:.1f} s")


def speed(dtype: torch.dtype, seconds: float) -> None:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    decoders = {name: build(name, dtype) for name in QUANTIZATIONS}
    for step_name, (num_seqs, num_new) in STEPS.items():
        steps = {
            name: Step(decoder, dtype, num_seqs, num_new, CONTEXT)
            for name, decoder in decoders.items()
        }
        least = dict.fromkeys(steps, math.inf)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for name, step in steps.items():
                started = clock()
                step.run(step.last_rows)
                least[name] = min(least[name], clock() - started)
        dense = least["none"]
        others = ", ".join(
            f"{n} {dense / t:.2f} times as fast" for n, t in least.items() if t != dense
        )
        print(f"{step_name}: {dense * 1e3:.2f} ms dense; {others}", flush=True)


def main() -> None:
    """Print one table or a few lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["accuracy", "memory", "speed"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "speed":
        speed(getattr(torch, options.dtype), options.seconds)
    else:
        {"accuracy": accuracy, "memory": memory}[options.what]()


if __name__ == "__main__":
    main()
