"""Whose outputs a sequence's proposals come from: its own tenant's, and no other one's."""

from pagoda_engine.speculation import OutputsKey, SuffixProposer, TenantOutputs
from pagoda_engine.speculation.recent_outputs import NUM_BYTES

MINE = OutputsKey(b"me", bytes(16))
SAID = [1, 2, 3, 4, 5, 6, 7, 8]


def outputs(num_tenants: int = 4) -> TenantOutputs:
    return TenantOutputs(num_tenants * NUM_BYTES)


def proposed(tokens: list[int], memory: TenantOutputs, key: OutputsKey = MINE) -> list[int]:
    return list(SuffixProposer(tokens, 100, memory, key).propose(3))


def test_what_the_tenant_had_before_is_proposed_to_it_alone() -> None:
    memory = outputs()
    memory.add(MINE, (), SAID)
    assert proposed(SAID[:4], memory) == [5, 6, 7]
    for other in (
        OutputsKey(b"you", bytes(16)),
        OutputsKey(b"", bytes(16)),
        OutputsKey(b"me", bytes([1]) * 16),
        OutputsKey(b"you", bytes([1]) * 16),
        OutputsKey(b"m", b"e" + bytes(15)),
    ):
        assert proposed(SAID[:4], memory, other) == []


def test_the_longer_suffix_decides_and_its_own_where_equal() -> None:
    memory = outputs()
    memory.add(MINE, (), SAID)
    assert proposed([1, 2, 3, 4, 9, 9, 9, 1, 2, 3, 4], memory) == [9, 9, 9], "4 and 4"
    assert proposed([3, 4, 9, 9, 1, 2, 3, 4], memory) == [5, 6, 7], "2 and 4"
    memory.add(MINE, (), [20, 21, 22, 23, 24, 25, 26, 27, 28])
    own = [24, 25, 26, 27, 9, 9, 9, *range(20, 28)]
    assert proposed(own, memory)[0] == 28, "4 and 8"


def test_who_was_not_heard_of_for_longest_makes_room() -> None:
    memory = outputs(2)
    keys = [OutputsKey(bytes([i]), bytes(16)) for i in range(3)]
    for key in (keys[0], keys[1], keys[0], keys[2]):
        memory.add(key, (), SAID)
    assert len(memory) == 2
    assert [proposed(SAID[:4], memory, key) for key in keys] == [[5, 6, 7], [], [5, 6, 7]]


def test_a_proposer_outlives_what_it_looked_into() -> None:
    memory, tokens = outputs(1), SAID[:4]
    proposer = SuffixProposer(tokens, 100, memory, MINE)
    assert proposer.propose(3) == ()
    memory.add(MINE, (), SAID)
    assert proposer.propose(3) == [5, 6, 7], "learned meanwhile"
    memory.add(OutputsKey(b"you", bytes(16)), (), SAID)
    assert proposer.propose(3) == (), "made room for another one"


def test_without_room_nothing_is_kept() -> None:
    memory = TenantOutputs(NUM_BYTES - 1)
    memory.add(MINE, (), SAID)
    assert len(memory) == 0


def test_what_is_too_short_teaches_nothing() -> None:
    memory = outputs()
    memory.add(MINE, SAID, [1, 2, 3])
    assert len(memory) == 0
