"""A real engine's loop, and what is loaded into it on whose word."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry.context import Context
from support.adapters import make_tiny_adapter
from support.engine_driver import hash_block
from support.tiny_checkpoints import make_tiny_checkpoint

from pagoda.rpc.v1 import adapter_pb2
from pagoda_engine import AdapterSlots, AdapterTable, Engine, EngineConfig, load_model
from pagoda_worker.adapters import loaded_adapters
from pagoda_worker.adapters.adapter_list import AdapterList
from pagoda_worker.adapters.loaded_adapters import LoadedAdapters
from pagoda_worker.engine_loop import EngineLoop
from pagoda_worker.errors import AdapterRefusedError

pytestmark = pytest.mark.asyncio
DONE, REFUSED = adapter_pb2.ADAPTER_STATUS_DONE, adapter_pb2.ADAPTER_STATUS_REFUSED


class Bench:
    """An engine with two slots, three adapters on disk, and workers' tables over it."""

    def __init__(self, folder: Path) -> None:
        base = make_tiny_checkpoint(folder / "model", "llama")
        self.folder = folder / "adapters"
        for seed, name in enumerate("abc"):
            make_tiny_adapter(self.folder / name, base, seed=seed)
        config = EngineConfig(dtype="float32", max_model_len=64, num_blocks=8)
        model = load_model(base, config)
        table = AdapterTable(AdapterSlots(model.decoder, num_slots=2, max_rank=4))
        self.engine = Engine(model, config, hash_block=hash_block, adapters=table)
        self.loop = EngineLoop(self.engine, on_step=lambda _: None, on_failure=lambda _: None)

    def loaded(self, *, max_rank: int = 4, **fixed: str) -> LoadedAdapters:
        return LoadedAdapters(
            self.loop,
            description=self.engine.model.description,
            dtype=self.engine.model.dtype,
            max_rank=max_rank,
            fixed={name: self.folder / path for name, path in fixed.items()},
            listed=AdapterList(self.folder, "m"),
        )


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    bench.loop.start()
    yield bench
    await bench.loop.stop()


async def ask(loaded: LoadedAdapters, name: str, path: str = "") -> adapter_pb2.AdapterResponse:
    return await loaded.on_request(adapter_pb2.AdapterRequest(name=name, path=path), Context())


def names(loaded: LoadedAdapters) -> list[str]:
    return [adapter.name for adapter in loaded.announced()]


async def test_who_joins_later_has_what_was_loaded(bench: Bench) -> None:
    first = bench.loaded(x="a")
    await first.start()
    answer = await ask(first, "y", "b")
    assert (answer.status, len(answer.digest)) == (DONE, 16)
    assert first.has(answer.digest)
    second = bench.loaded(x="a")
    await second.start()
    assert names(second) == names(first) == ["x", "y"]
    assert await ask(first, "y", "b") == answer  # again: nothing changes
    assert (await ask(first, "y")).status == DONE
    third = bench.loaded()
    await third.start()
    assert names(third) == []
    assert not first.has(answer.digest)


async def test_a_list_that_changed_is_followed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded_adapters, "FOLLOW_SECONDS", 0.001)
    follower = bench.loaded()
    await follower.start()
    other = AdapterList(bench.folder, "m")
    passes: asyncio.Queue[bool] = asyncio.Queue()
    follow_once = follower._follow_once

    async def noted() -> bool:
        passes.put_nowait(await follow_once())
        return True

    monkeypatch.setattr(follower, "_follow_once", noted)
    task = asyncio.create_task(follower.follow())
    async with asyncio.timeout(60):
        other.change("y", str(bench.folder / "b"))
        while names(follower) != ["y"]:
            assert await passes.get()
        other.change("y", "")
        while names(follower):
            assert await passes.get()
    task.cancel()
    await asyncio.wait([task])
    assert bench.engine.adapters == frozenset()


async def test_an_unload_that_comes_behind_a_load_stays_behind_it(bench: Bench) -> None:
    loaded = bench.loaded()
    await loaded.start()
    answers = await asyncio.gather(ask(loaded, "x", "a"), ask(loaded, "x"))
    assert [answer.status for answer in answers] == [DONE, DONE]
    assert names(loaded) == []
    assert AdapterList(bench.folder, "m").read() == {}


async def test_what_is_refused(bench: Bench) -> None:
    (bench.folder / "linked").mkdir()
    (bench.folder / "linked" / "adapter_config.json").symlink_to("../a/adapter_config.json")
    weights = bench.folder / "linked" / "adapter_model.safetensors"
    weights.symlink_to(bench.folder.parent / "model" / "model.safetensors")
    loaded = bench.loaded(x="a")
    await loaded.start()
    for name, path, reason in (
        ("y", "../model", "must be below"),
        ("y", "linked", "and so must what its links lead to"),
        ("y", "none", "cannot be read"),
        ("x", "b", "other content: unload it first"),
        ("x", "", "PAGODA_ADAPTERS names 'x'"),
    ):
        answer = await ask(loaded, name, path)
        assert (answer.status, reason in answer.message) == (REFUSED, True), answer
    assert (await ask(loaded, "y", "b")).status == DONE
    answer = await ask(loaded, "z", "c")
    assert "all 2 slots for adapters are taken" in answer.message
    assert "PAGODA_MAX_ADAPTERS" in answer.message
    assert names(loaded) == ["x", "y"]


async def test_a_list_that_cannot_be_written_leaves_nothing_loaded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = bench.loaded()
    await loaded.start()

    def fail(*_: object) -> None:
        raise AdapterRefusedError("read-only")

    monkeypatch.setattr(AdapterList, "change", fail)
    assert (await ask(loaded, "y", "b")).status == REFUSED
    assert names(loaded) == []
    assert bench.engine.adapters == frozenset()


async def test_a_name_of_the_settings_that_cannot_be_loaded_ends_the_start(bench: Bench) -> None:
    with pytest.raises(AdapterRefusedError, match=r"PAGODA_ADAPTERS: x: .*cannot be read"):
        await bench.loaded(x="none").start()
    with pytest.raises(AdapterRefusedError, match="set PAGODA_MAX_ADAPTERS"):
        await bench.loaded(max_rank=0, x="a").start()


async def test_a_listed_one_that_cannot_be_loaded_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.loaded()
    await first.start()
    await ask(first, "y", "b")
    shutil.rmtree(bench.folder / "b")
    second = bench.loaded(x="a")
    await second.start()
    assert names(second) == ["x"]
    assert "the listed adapter y is not loaded" in caplog.text


async def test_two_names_of_one_content_share_it(bench: Bench) -> None:
    loaded = bench.loaded()
    await loaded.start()
    shutil.copytree(bench.folder / "a", bench.folder / "copy")
    one, two = await ask(loaded, "x", "a"), await ask(loaded, "y", "copy")
    assert one.digest == two.digest
    await ask(loaded, "x")
    assert loaded.has(one.digest)
    assert bench.engine.adapters == {one.digest}
    await ask(loaded, "y")
    assert bench.engine.adapters == frozenset()
