"""What is kept of answers: for how long, how much, and whose."""

from types import SimpleNamespace
from typing import Any

from pagoda_gateway.response_cache.response_cache import ENTRY_BYTES, ResponseCache
from pagoda_gateway.sequences.replay import KeptOutput

OUTPUT = KeptOutput((1, 2, 3), "stop", None)
SIZE = len('[[[1,2,3],"stop",null]]') + ENTRY_BYTES


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def answer(tenant: str, finish_reason: str = "stop") -> Any:
    sequence = SimpleNamespace(token_ids=[1, 2, 3], finish_reason=finish_reason, matched_stop=None)
    return SimpleNamespace(identity=SimpleNamespace(tenant=tenant), sequences=[sequence])


def test_an_answer_is_found_by_its_tenant() -> None:
    cache = ResponseCache(10 * SIZE)
    cache.put("x", answer("a"), ttl_seconds=1.0)
    assert cache.get("a", "x") == [OUTPUT]
    assert cache.get("b", "x") is None
    assert cache.num_bytes == SIZE


def test_what_was_cut_short_is_no_answer() -> None:
    cache = ResponseCache(10 * SIZE)
    cache.put("x", answer("a", finish_reason="abort"), ttl_seconds=1.0)
    assert cache.get("a", "x") is None
    assert cache.num_bytes == 0


def test_an_answer_expires_and_its_bytes_with_it() -> None:
    clock = Clock()
    cache = ResponseCache(10 * SIZE, clock=clock)
    cache.put("x", answer("a"), ttl_seconds=5.0)
    clock.seconds = 4.9
    assert cache.get("a", "x") == [OUTPUT]
    clock.seconds = 5.0
    assert cache.get("a", "x") is None
    cache.put("y", answer("b"), ttl_seconds=5.0)
    assert cache.num_bytes == SIZE


def test_who_holds_most_loses_the_oldest() -> None:
    cache = ResponseCache(4 * SIZE)
    cache.put("x", answer("small"), ttl_seconds=1.0)
    for key in "abcd":
        cache.put(key, answer("large"), ttl_seconds=1.0)
    assert cache.get("small", "x") == [OUTPUT]
    assert [cache.get("large", key) is not None for key in "abcd"] == [False, True, True, True]
    assert cache.num_bytes == 4 * SIZE


def test_what_is_too_large_is_not_kept() -> None:
    cache = ResponseCache(SIZE - 1)
    cache.put("x", answer("a"), ttl_seconds=1.0)
    assert cache.get("a", "x") is None
    assert cache.num_bytes == 0


def test_an_answer_takes_the_place_of_its_former_one() -> None:
    clock = Clock()
    cache = ResponseCache(10 * SIZE, clock=clock)
    for _ in range(3):
        cache.put("x", answer("a"), ttl_seconds=5.0)
    assert cache.num_bytes == SIZE
    cache.put("short", answer("a"), ttl_seconds=1.0)
    clock.seconds = 1.0
    assert cache.get("a", "short") is None
    assert cache.get("a", "x") == [OUTPUT]
