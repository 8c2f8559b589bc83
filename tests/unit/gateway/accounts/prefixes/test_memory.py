"""What is remembered of prompts, within its budgets; whose it is, and when it counts."""

import random
from collections.abc import Sequence

import pytest

from pagoda_gateway.accounts.prefixes.explanation import CacheKey
from pagoda_gateway.accounts.prefixes.memory import MAX_OF_FAMILY, Arrival, PrefixMemory
from pagoda_gateway.accounts.prefixes.outline import Outline
from pagoda_runtime.block_hash import hash_prompt

SIZE = 16
KEY = CacheKey("m", b"i" * 16, "", b"r" * 16)


class Requests:
    """Prompts of one memory, by tenants; `computed` says which of them have their first token."""

    def __init__(self, max_bytes: int = 1 << 24, max_tenant_bytes: int = 1 << 24) -> None:
        self.memory = PrefixMemory(max_bytes=max_bytes, max_tenant_bytes=max_tenant_bytes)
        self.computed: set[int] = set()

    def arrive(self, token_ids: Sequence[int], tenant: str = "t", key: CacheKey = KEY) -> Arrival:
        hashes = hash_prompt(key.root, token_ids, SIZE)
        numbers: list[int] = []
        arrival = self.memory.arrive(
            tenant, key, tuple(token_ids), hashes, Outline(), lambda: numbers[0] in self.computed
        )
        numbers.append(arrival.number)
        return arrival

    def settle(
        self,
        arrival: Arrival,
        token_ids: Sequence[int],
        tenant: str = "t",
        *,
        computed: bool = True,
    ) -> None:
        hashes = hash_prompt(KEY.root, token_ids, SIZE)
        self.memory.settle(tenant, arrival, hashes, is_computed=computed)

    def serve(self, token_ids: Sequence[int], tenant: str = "t") -> Arrival:
        arrival = self.arrive(token_ids, tenant)
        self.settle(arrival, token_ids, tenant)
        return arrival


def drawn(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(1 << 17) for _ in range(num)]


def test_a_prompt_that_goes_on_knows_what_it_goes_on_from() -> None:
    requests, rng = Requests(), random.Random(1)
    first = drawn(rng, 100)
    assert requests.serve(first).num_known_blocks == 0
    second = requests.serve([*first, *drawn(rng, 100)])
    assert (second.num_ready_blocks, second.num_known_blocks) == (6, 6)
    assert second.relatives == ()  # nothing differs


def test_blocks_count_as_ready_from_the_first_token_on() -> None:
    requests, rng = Requests(), random.Random(2)
    prompt = drawn(rng, 100)
    first = requests.arrive(prompt)
    twin = requests.arrive(prompt)
    assert (twin.num_ready_blocks, twin.num_known_blocks) == (0, 6)
    requests.computed.add(first.number)
    other = requests.arrive([*prompt[:50], *drawn(rng, 50)])
    assert requests.arrive(prompt).num_ready_blocks == 6
    assert (other.num_ready_blocks, other.num_known_blocks) == (3, 3)


def test_of_many_equal_prompts_at_once_a_few_are_kept_and_the_first_still_counts() -> None:
    requests, rng = Requests(), random.Random(3)
    prompt = drawn(rng, 100)
    first = requests.arrive(prompt)
    twins = [requests.arrive(prompt) for _ in range(10 * MAX_OF_FAMILY)]
    assert len(requests.memory._tenants["t"].prompts) <= MAX_OF_FAMILY
    assert [(twin.num_ready_blocks, twin.num_known_blocks) for twin in twins] == [(0, 6)] * len(
        twins
    )
    requests.computed.add(first.number)
    assert requests.arrive(prompt).num_ready_blocks == 6


@pytest.mark.parametrize("num_tokens", [SIZE - 4, 3 * SIZE])
def test_of_equal_prompts_a_few_are_kept_however_little_they_say(num_tokens: int) -> None:
    """Short ones, and those of a single token over and over, have hardly any marks."""
    requests = Requests()
    for _ in range(10 * MAX_OF_FAMILY):
        requests.serve([7] * num_tokens)
    assert len(requests.memory._tenants["t"].prompts) <= MAX_OF_FAMILY


def test_a_prompt_that_was_never_computed_is_forgotten() -> None:
    requests, rng = Requests(), random.Random(3)
    prompt = drawn(rng, 100)
    requests.settle(requests.arrive(prompt), prompt, computed=False)
    again = requests.arrive(prompt)
    assert (again.num_known_blocks, again.relatives) == (0, ())


def test_a_repeat_that_is_never_computed_takes_nothing_with_it() -> None:
    """It was refused, or answered from what was kept: the first one's blocks are still there."""
    requests, rng = Requests(), random.Random(3)
    prompt = drawn(rng, 100)
    requests.serve(prompt)
    requests.settle(requests.arrive(prompt), prompt, computed=False)
    again = requests.arrive(prompt)
    assert again.num_ready_blocks == 6


def test_the_end_of_a_conversation_outlives_its_tokens() -> None:
    requests, rng = Requests(), random.Random(4)
    system = drawn(rng, 64)
    first = [*system, *drawn(rng, 64)]
    requests.serve(first)
    for _ in range(3 * MAX_OF_FAMILY):
        requests.serve([*system, *drawn(rng, 64)])
    later = requests.arrive([*first, *drawn(rng, 30)])
    assert later.num_ready_blocks == len(first) // SIZE


def test_a_busy_family_does_not_drive_out_another() -> None:
    requests, rng = Requests(max_tenant_bytes=1 << 18), random.Random(5)
    quiet, busy = drawn(rng, 200), drawn(rng, 200)
    requests.serve(quiet)
    for _ in range(100):
        requests.serve([*busy, *drawn(rng, 50)])
    changed = requests.arrive([7, *quiet])
    assert len(requests.memory.relatives("t", changed)) == 1


def test_tenants_know_nothing_of_each_other() -> None:
    requests, rng = Requests(), random.Random(6)
    prompt = drawn(rng, 100)
    requests.serve(prompt, "a")
    other = requests.arrive(prompt, "b")
    assert (other.num_known_blocks, other.relatives) == (0, ())
    assert requests.memory.relatives("b", other) == []


def test_another_salt_shares_no_blocks_but_is_a_relative() -> None:
    requests, rng = Requests(), random.Random(7)
    prompt = drawn(rng, 100)
    requests.serve(prompt)
    salted = requests.arrive(prompt, key=CacheKey("m", b"i" * 16, "", b"s" * 16))
    assert salted.num_known_blocks == 0
    assert len(requests.memory.relatives("t", salted)) == 1


@pytest.mark.parametrize("seed", range(5))
def test_budgets_hold_whatever_comes(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    max_bytes, max_tenant_bytes = 1 << 19, 1 << 18
    requests = Requests(max_bytes, max_tenant_bytes)
    pending: list[tuple[Arrival, list[int], str]] = []
    prompts = [drawn(rng, rng.randrange(1, 3000)) for _ in range(20)]
    for _ in range(400):
        tenant = f"t{rng.randrange(6)}"
        prompt = [*rng.choice(prompts)[: rng.randrange(1, 3000)], *drawn(rng, rng.randrange(300))]
        pending.append((requests.arrive(prompt, tenant), prompt, tenant))
        if rng.random() < 0.9:
            arrival, ids, owner = pending.pop(rng.randrange(len(pending)))
            requests.settle(arrival, ids, owner, computed=rng.random() < 0.8)
        tenants = requests.memory._tenants
        assert requests.memory.num_bytes <= max_bytes
        assert requests.memory.num_bytes == sum(t.num_bytes for t in tenants.values())
        for known in tenants.values():
            assert known.num_bytes <= max_tenant_bytes
            assert known.prompt_bytes == sum(p.num_bytes for p in known.prompts.values())
            marks = {(mark, n) for n, p in known.prompts.items() for mark in p.sketch}
            assert marks == {(mark, n) for mark, ns in known.by_mark.items() for n in ns}


def test_a_prompt_larger_than_the_budget_is_not_kept() -> None:
    requests, rng = Requests(max_bytes=1 << 16, max_tenant_bytes=1 << 16), random.Random(8)
    requests.serve(drawn(rng, 100_000))
    assert requests.memory.num_bytes <= 1 << 16
