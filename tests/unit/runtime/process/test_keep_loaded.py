import gc
import weakref
from collections.abc import Iterator

import pytest

from pagoda_runtime.process.service import keep_loaded


class Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_is_loaded_is_not_walked_again() -> None:
    loaded = [Node() for _ in range(1000)]
    keep_loaded()

    assert gc.get_freeze_count() >= len(loaded)
    assert not any(isinstance(found, Node) for found in gc.get_objects())


def test_what_nobody_holds_is_not_kept() -> None:
    gone = weakref.ref(Node())
    keep_loaded()

    assert gone() is None


def test_what_comes_later_is_collected() -> None:
    keep_loaded()
    gone = weakref.ref(Node())
    gc.collect()

    assert gone() is None
