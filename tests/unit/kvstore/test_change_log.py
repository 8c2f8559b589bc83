import pytest

from pagoda_kvstore.change_log import ChangeLog, TierChanges, TierName

NONE = TierChanges((), ())


def test_last_change_of_a_hash_counts() -> None:
    log = ChangeLog()
    for block_hash, is_stored in [(b"a", True), (b"b", True), (b"a", False), (b"b", True)]:
        log.add(TierName.CPU, block_hash, is_stored)
    assert log.take() == {TierName.CPU: TierChanges((b"b",), (b"a",)), TierName.NVME: NONE}
    assert log.take() == {TierName.CPU: NONE, TierName.NVME: NONE}


def test_listener_hears_the_first_change_only() -> None:
    log, calls = ChangeLog(), []
    log.on_change = lambda: calls.append(1)
    log.add(TierName.CPU, b"a", True)
    log.add(TierName.NVME, b"a", True)
    assert len(calls) == 1
    log.take()
    log.add(TierName.CPU, b"b", True)
    assert len(calls) == 2


def test_more_changes_than_are_remembered_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagoda_kvstore.change_log._MAX_CHANGES", 2)
    log = ChangeLog()
    for name in (b"a", b"b", b"c"):
        log.add(TierName.CPU, name, True)
    assert log.take() is None
    log.add(TierName.NVME, b"d", True)
    assert log.take() == {TierName.CPU: NONE, TierName.NVME: TierChanges((b"d",), ())}
