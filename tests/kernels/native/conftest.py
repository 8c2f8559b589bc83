"""Every instruction set that this processor has, each as its own library."""

import zlib
from collections.abc import Iterator

import pytest
import torch

from pagoda_kernels.native import decoder_layers, packed_experts, packed_linear, quantised_weight
from pagoda_kernels.native.library import (
    INSTRUCTION_SETS,
    NativeLibrary,
    find_or_compile,
    processor_flags,
)

HERE = [name for name, (needed, _) in INSTRUCTION_SETS.items() if needed <= processor_flags()]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is the same C again: see `_is_left_out`."""
    config.hook.pytest_deselected(items=[item for item in items if _is_left_out(item)])
    items[:] = [item for item in items if not _is_left_out(item)]


def _is_left_out(item: pytest.Item) -> bool:
    """One and three threads but for the best set; of the sets between, two cases of three."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    name = params.get("library")
    if name not in HERE[1:]:
        return False
    is_between = name != "avx2" and zlib.crc32(item.nodeid.encode()) % 3 != 0
    return params.get("num_threads", 2) != 2 or is_between


@pytest.fixture(scope="session", params=HERE)
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    return NativeLibrary(find_or_compile(request.param), request.param)


@pytest.fixture
def native(library: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> NativeLibrary:
    """The library that projections and layers take."""
    for module in (packed_linear, packed_experts, quantised_weight, decoder_layers):
        monkeypatch.setattr(module, "native_library", lambda: library)
    return library


@pytest.fixture(params=[1, 2, 3], ids=lambda n: f"{n}-threads")
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
