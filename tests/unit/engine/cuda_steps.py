"""Run an engine's steps on a CUDA device that computes nothing, and refuse whatever would wait.

Run as a script without TRITON_INTERPRET. Every step's work runs as if a graph were captured: a
value that the host asks for, or a copy between host and device, fails. Prints a JSON object for
each model: steps, replays, steps of those that verified proposed tokens, the kernels that serving
compiles although it is warm, and what every kernel that it launched compiles to. Widths are real
ones: fake tensors have no bytes.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from support.compiled_kernel import compile_launch
from support.engine_driver import hash_block, make_request
from support.fake_cuda import CAPABILITY, DEVICE, captured, fake_cuda
from support.forcing_mask import ForcingMask
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from pagoda_engine import ComputedLayers, Engine, EngineConfig, LoadedModel, SamplingParams
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.device.queue import ClockRecorder, DoneWork, Work
from pagoda_engine.models.build_decoder import build_decoder
from pagoda_engine.models.description import DecoderDescription, ExpertsDescription
from pagoda_engine.models.rope_scaling import RopeDescription
from pagoda_engine.start_up.warm_up import prompt_lengths

VOCAB_SIZE = 151936
DENSE = DecoderDescription(
    architecture="Qwen3ForCausalLM",
    vocab_size=VOCAB_SIZE,
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=3,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position_embeddings=4096,
    norm_eps=1e-6,
    rope=RopeDescription(theta=1e6),
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm="head",
    sliding_windows=(None, 512, None),
    tie_word_embeddings=False,
    dtype="bfloat16",
)
EXPERTS = ExpertsDescription(
    num_experts=128,
    num_experts_per_tok=8,
    intermediate_size=768,
    norm_topk_prob=True,
    layers=frozenset({0, 2}),
)
MODELS = {
    "dense": DENSE,
    "mixture": replace(
        DENSE,
        architecture="Qwen3MoeForCausalLM",
        hidden_size=2048,
        num_kv_heads=4,
        experts=EXPERTS,
    ),
}


class HostCopies(TorchFunctionMode):
    """Pins nothing, and copies to the device the shape and type alone."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.Tensor.pin_memory:
            return args[0]
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        is_copy = func is torch.Tensor.to and not isinstance(args[0], FakeTensor)
        if is_copy and DEVICE in (*args[1:], kwargs.get("device")):
            assert kwargs.get("non_blocking"), "a copy that the host waits for"
            func, args, kwargs = torch.empty, args[0].shape, {"dtype": args[0].dtype}
        if is_copy or kwargs.get("device") == DEVICE:
            with fake_mode:
                return func(*args, **{**kwargs, "device": DEVICE})
        return func(*args, **kwargs)


class DeviceCopies(TorchFunctionMode):
    """Copies without a device guard, which torch without CUDA does not have; none to the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func is torch.Tensor.copy_:
            assert args[0].device == args[1].device == DEVICE
            assert torch.broadcast_shapes(args[0].shape, args[1].shape) == args[0].shape
            return args[0]
        return func(*args, **(kwargs or {}))


class Queue:
    """Tokens that come back are all 1."""

    lag = 1

    def preparing(self) -> AbstractContextManager[object]:
        return on_host()

    def submit(self, work: Work) -> "AllOnes":
        recorder = ClockRecorder(time.perf_counter)
        with captured(), DeviceCopies():
            tensors = list(work(recorder))
        return AllOnes(tensors, recorder.marks)


class AllOnes(DoneWork):
    def read(self) -> list[torch.Tensor]:
        with on_host():
            return [torch.ones(t.shape, dtype=t.dtype) for t in super().read()]


@contextmanager
def on_host() -> Iterator[None]:
    """Compute with real values, which are the host's."""
    with unset_fake_temporarily(), HostCopies():
        yield


class Replays:
    """Runs the forward again, refusing what a graph could not hold."""

    def __init__(self) -> None:
        self.num_replays = 0

    def capture(self, forward: Any) -> Any:
        with captured(), DeviceCopies():
            forward()

        def replay() -> torch.Tensor:
            self.num_replays += 1
            return forward()

        return replay


class Pool:
    """The part of a KvCache that a forward uses."""

    part_places = None  # blocks are whole
    places_of = KvCache.places_of

    def __init__(self, layout: KvLayout, num_blocks: int) -> None:
        self.layout = layout
        self.num_blocks, self.num_layers = num_blocks, layout.num_layers
        self.tensor = torch.empty(layout.pool_shape(num_blocks), dtype=layout.dtype, device=DEVICE)

    def layer(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(plane.unbind()[index] for plane in self.tensor)


class EmptyWeights:
    def take(
        self, parts: object, shape: tuple[int, ...], dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or torch.bfloat16, device=DEVICE)


class AnyToken(ForcingMask):
    """Also forces a few tokens once."""

    vocab_size = VOCAB_SIZE

    def forced(self, output_token_ids: Sequence[int]) -> Sequence[int]:
        return (1,) * 5 if len(output_token_ids) == 4 else ()


DRAWN = SamplingParams(max_tokens=1)
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.1},
    {"top_n_sigma": 1.0, "typical_p": 0.9, "xtc_probability": 0.5},
    {"dry_multiplier": 1.0, "lz_penalty": 0.1},
    {"frequency_penalty": 0.5},
    {"num_logprobs": 3},
    {"logit_bias": {3: 1.0}},
    {"min_tokens": 4, "stop_token_ids": (5, 6)},
]


def add_all(engine: Engine, name: str) -> None:
    def add(sequence_id: str, length: int, params: dict[str, Any], **fields: Any) -> None:
        sampling = SamplingParams(max_tokens=7 + length % 4, ignore_eos=True, **params)
        prompt = range(length)
        engine.add(
            make_request(f"{name}{sequence_id}", prompt, block_size=16, sampling=sampling, **fields)
        )

    for i, params in enumerate(REQUESTS):
        add(str(i), 40 + i * (7 if name == "served" else 1), params)
    add("masked", 50, {}, token_mask=AnyToken())
    add("exported", 70, {}, prefill_only=True)


def run(engine: Engine) -> tuple[int, int]:
    """Return how many steps there were, and how many of them replayed with proposed tokens."""
    num_steps = num_verifying = 0
    while engine.has_work():
        result = engine.step()
        for computed in result.computed:
            engine.release(computed.sequence_id) if len(computed.block_ids) % 2 else None
        num_steps += 1
        num_verifying += result.stats.is_graph and result.stats.num_proposed_tokens > 0
        assert num_steps < 200
    return num_steps, num_verifying


def serve(description: DecoderDescription) -> dict[str, object]:
    with fake_cuda() as log:
        global fake_mode
        fake_mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        decoder = build_decoder(description, EmptyWeights(), max_positions=4096, device=DEVICE)
        model = LoadedModel(
            description=description,
            decoder=decoder,
            device=DEVICE,
            dtype=torch.bfloat16,
            eos_token_ids=frozenset(),
            fingerprint=bytes(16),
        )
        config = EngineConfig(
            block_size=16,
            num_blocks=512,
            max_model_len=4096,
            max_num_seqs=8,
            max_num_batched_tokens=128,
            num_layer_groups=2,
            speculation="ngram",
        )
        reports: list[ComputedLayers] = []
        replays = Replays()
        engine = Engine(
            model,
            config,
            hash_block=hash_block,
            kv_cache=Pool(model.kv_layout(config.block_size), config.num_blocks),  # type: ignore[arg-type]
            queue=Queue(),
            graph_capture=replays,
            on_layers=reports.extend,
        )
        engine.capture()
        add_all(engine, "warm")
        run(engine)
        engine.add(make_request("warm", range(9), block_size=16, sampling=DRAWN))
        run(engine)  # alone: beside others its logits are of another dtype
        for length in prompt_lengths(config.max_num_batched_tokens):
            params = SamplingParams(max_tokens=1, temperature=0.0)
            engine.add(make_request("warm", range(length), block_size=16, sampling=params))
            run(engine)
        warm = set(log.keys)
        log.clear()
        add_all(engine, "served")
        num_steps, num_verifying = run(engine)
        late = sorted({name for name, key in {*log.keys} - warm})
        engine.check_invariants()
    return {
        "num_steps": num_steps,
        "num_replays": replays.num_replays,
        "num_verifying": num_verifying,
        "num_reports": len(reports),
        "late": late,
        "compiled": [compile_launch(*launch, CAPABILITY, case="") for launch in log.first.values()],
    }


if __name__ == "__main__":
    for model_name, shape in MODELS.items():
        print(json.dumps({"model": model_name, **serve(shape)}))
