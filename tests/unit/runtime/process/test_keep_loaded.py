import gc
import weakref
from collections.abc import Iterator

import pytest

from pagoda_runtime.process.service import GC_OBJECTS, keep_loaded


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_loaded_is_not_walked_again() -> None:
    loaded = [Node() for _ in range(1000)]
    keep_loaded()

    assert gc.get_freeze_count() >= len(loaded)
    assert not any(isinstance(found, Node) for found in gc.get_objects())


def test_what_nobody_holds_is_not_kept() -> None:
    gone = weakref.ref(Node())
    keep_loaded()

    assert gone() is None


def test_a_step_of_many_streams_makes_none_look() -> None:
    keep_loaded()
    gc.collect()
    collections = gc.get_stats()[0]["collections"]
    step = [[number] for number in range(GC_OBJECTS // 2)]

    assert gc.get_stats()[0]["collections"] == collections
    assert len(step) == GC_OBJECTS // 2


def test_what_comes_later_is_collected() -> None:
    keep_loaded()
    gone = weakref.ref(Node())
    gc.collect()

    assert gone() is None
