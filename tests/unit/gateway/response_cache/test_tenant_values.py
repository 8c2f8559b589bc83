"""What is kept of answers: for how long, how much, and whose."""

from pagoda_gateway.response_cache.tenant_values import ENTRY_BYTES, TenantValues

TEN_BYTES = "12345678"  # with its quotes
SIZE = 10 + ENTRY_BYTES


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_value_is_found_by_its_tenant_until_it_is_deleted() -> None:
    store = TenantValues(max_bytes=10 * SIZE, keep_seconds=1.0)
    store.put("a", "x", {"n": 1})
    assert store.get("a", "x") == {"n": 1}
    assert store.get("b", "x") is None
    store.delete("a", "x")
    assert store.get("a", "x") is None
    assert store.num_bytes == 0


def test_a_value_expires_and_its_bytes_with_it() -> None:
    clock = Clock()
    store = TenantValues(max_bytes=10 * SIZE, keep_seconds=5.0, clock=clock)
    store.put("a", "x", TEN_BYTES)
    clock.seconds = 4.9
    assert store.get("a", "x") == TEN_BYTES
    clock.seconds = 5.0
    assert store.get("a", "x") is None
    store.put("b", "y", TEN_BYTES)
    assert store.num_bytes == SIZE


def test_who_holds_most_loses_the_oldest() -> None:
    store = TenantValues(max_bytes=4 * SIZE, keep_seconds=1.0)
    store.put("small", "x", TEN_BYTES)
    for name in "abcd":
        store.put("large", name, TEN_BYTES)
    assert store.get("small", "x") == TEN_BYTES
    assert [store.get("large", name) is not None for name in "abcd"] == [False, True, True, True]
    assert store.num_bytes == 4 * SIZE


def test_what_is_too_large_is_not_kept() -> None:
    store = TenantValues(max_bytes=SIZE - 1, keep_seconds=1.0)
    store.put("a", "x", TEN_BYTES)
    assert store.get("a", "x") is None
    assert store.num_bytes == 0


def test_a_value_takes_the_place_of_its_former_one() -> None:
    clock = Clock()
    store = TenantValues(max_bytes=10 * SIZE, keep_seconds=5.0, clock=clock)
    for _ in range(3):
        store.put("a", "x", TEN_BYTES)
    assert store.num_bytes == SIZE
    store.put("a", "short", TEN_BYTES, keep_seconds=1.0)
    clock.seconds = 1.0
    assert store.get("a", "short") is None
    assert store.get("a", "x") == TEN_BYTES
