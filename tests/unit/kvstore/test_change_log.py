from pagoda_kvstore.change_log import ChangeLog, TierName


def test_last_change_of_a_hash_counts() -> None:
    log = ChangeLog()
    for block_hash, is_stored in [(b"a", True), (b"b", True), (b"a", False), (b"b", True)]:
        log.add(TierName.CPU, block_hash, is_stored)
    changes = log.take(TierName.CPU)
    assert (changes.stored, changes.evicted) == ((b"b",), (b"a",))
    assert log.take(TierName.CPU).stored == ()


def test_listener_hears_the_first_change_only() -> None:
    log, calls = ChangeLog(), []
    log.on_change = lambda: calls.append(1)
    log.add(TierName.CPU, b"a", True)
    log.add(TierName.NVME, b"a", True)
    assert len(calls) == 1
    for tier in TierName:
        log.take(tier)
    log.add(TierName.CPU, b"b", True)
    assert len(calls) == 2
