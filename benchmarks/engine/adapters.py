"""What LoRA adapters cost a decode step on a CPU: 8 rows of 4 adapters beside 8 rows of none.

    OMP_WAIT_POLICY=PASSIVE PYTHONPATH=tests:benchmarks python \
        benchmarks/engine/adapters.py [--steps 48]

A random Llama of 126M parameters in bf16, one thread, random adapters of rank 16 on all seven
projections of every layer. Three engines over one model take turns, step by step: none of the rows
has an adapter, all have one of four, half of them have. Prints the least and the median step.
"""

import argparse
import statistics
from pathlib import Path

import torch
from serving.running.models import model_folder
from support.engine_driver import hash_block, make_request

from pagoda_engine import (
    Adapter,
    AdapterSlots,
    AdapterTable,
    Engine,
    EngineConfig,
    LoadedModel,
    SamplingParams,
    load_model,
)
from pagoda_engine.adapters.adapter import LoraWeights
from pagoda_engine.models.projections import adaptable_projections

ROOT = Path(__file__).parents[2]
RANK, NUM_ADAPTERS, NUM_ROWS, PROMPT = 16, 4, 8, 64


def random_adapter(model: LoadedModel, seed: int) -> Adapter:
    """Return one of all projections; its digest is its seed."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: LoraWeights(
            torch.randn(RANK, projection.num_columns, generator=generator) * 0.01,
            torch.randn(num_rows, RANK, generator=generator) * 0.01,
        )
        for layer in range(model.description.num_layers)
        for projection in adaptable_projections(model.description, layer)
        for name, num_rows in zip(projection.names, projection.num_rows, strict=True)
    }
    return Adapter(seed.to_bytes(16, "little"), RANK, 1.0, weights)


def running_engine(
    model: LoadedModel, config: EngineConfig, table: AdapterTable, adapters: list[Adapter | None]
) -> Engine:
    """Return an engine whose decodes have begun, a sequence for each of the adapters."""
    engine = Engine(model, config, hash_block=hash_block, adapters=table)
    sampling = SamplingParams(max_tokens=config.max_model_len, temperature=0.0, ignore_eos=True)
    for i, adapter in enumerate(adapters):
        if adapter is not None:
            engine.load_adapter(adapter)
        request = make_request(
            str(i),
            [i + 1] * PROMPT,
            block_size=config.block_size,
            sampling=sampling,
            adapter=b"" if adapter is None else adapter.digest,
        )
        engine.add(request)
    while engine.step().stats.num_prefill_tokens:
        pass
    return engine


def main() -> None:
    """Print one line for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=48)
    num_steps = parser.parse_args().steps
    torch.set_num_threads(1)
    config = EngineConfig(
        num_blocks=512, max_model_len=PROMPT + num_steps + 8, enable_prefix_caching=False
    )
    model = load_model(model_folder("small-8k", ROOT / ".pagoda" / "bench-models"), config)
    slots = AdapterSlots(model.decoder, num_slots=NUM_ADAPTERS, max_rank=RANK)
    table = AdapterTable(slots)
    four = [random_adapter(model, seed + 1) for seed in range(NUM_ADAPTERS)]
    rows = {
        "none": [None] * NUM_ROWS,
        "4 of all rows": four * (NUM_ROWS // NUM_ADAPTERS),
        "4 of half of the rows": [*four, *[None] * (NUM_ROWS - NUM_ADAPTERS)],
    }
    engines = {name: running_engine(model, config, table, row) for name, row in rows.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(num_steps):
        for name, engine in engines.items():
            stats = engine.step().stats
            assert stats.num_decode_tokens == NUM_ROWS
            times[name].append(stats.forward_seconds * 1e3)
    least, median = min(times["none"]), statistics.median(times["none"])
    print(f"slots: {slots.num_bytes / 2**20 / NUM_ADAPTERS:.1f} MiB each")
    for name, taken in times.items():
        print(
            f"{name:24}least {min(taken):7.2f} ms ({min(taken) / least:.2f}), "
            f"median {statistics.median(taken):7.2f} ms ({statistics.median(taken) / median:.2f})"
        )


if __name__ == "__main__":
    main()
