import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.stored_blocks import make_block, make_key

from pagoda_kvstore.errors import NvmeFolderInUseError
from pagoda_kvstore.tiers.device_state import RETRY_SECONDS
from pagoda_kvstore.tiers.nvme import NvmeTier
from pagoda_kvstore.tiers.nvme_folder import NvmeFolder
from pagoda_kvstore.tiers.segment import HEADER_BYTES, RECORD_HEADER_BYTES, SegmentHeader

RECORD_BYTES = RECORD_HEADER_BYTES + 1000
SEGMENT_BYTES = HEADER_BYTES + 4 * RECORD_BYTES

OpenTier = Callable[..., NvmeTier]


@pytest.fixture
def open_tier(tmp_path: Path) -> Iterator[OpenTier]:
    tiers: list[NvmeTier] = []

    def open_one(
        *,
        num_segments: int = 4,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> NvmeTier:
        for tier in tiers:
            tier.close()
        tiers.clear()
        tier = NvmeTier(
            NvmeFolder(tmp_path / "nvme"),
            budget_bytes=num_segments * SEGMENT_BYTES,
            segment_bytes=SEGMENT_BYTES,
            clock=clock,
        )
        tiers.append(tier)
        return tier

    yield open_one
    for tier in tiers:
        tier.close()


def segment_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "nvme").glob("*.seg"))


def put(tier: NvmeTier, names: str) -> None:
    tier.append([make_block(name) for name in names])


def held(tier: NvmeTier, names: str) -> str:
    return "".join(name for name in names if make_key(name) in tier)


def flip_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_read_returns_what_was_appended(open_tier: OpenTier) -> None:
    tier = open_tier()
    put(tier, "abcdef")
    keys = [make_key(name) for name in "fae"]
    assert tier.read(keys) == [make_block(name) for name in "fae"]
    tier.check_invariants()


def test_read_ends_at_the_first_missing_block(open_tier: OpenTier) -> None:
    tier = open_tier()
    put(tier, "ac")
    assert tier.read([make_key(name) for name in "abc"]) == [make_block("a")]
    assert (tier.num_hits, tier.num_misses) == (1, 1)


def test_known_block_is_not_written_again(open_tier: OpenTier) -> None:
    tier = open_tier()
    assert tier.append([make_block("a"), make_block("a")]) == 1
    assert tier.used_bytes == HEADER_BYTES + RECORD_BYTES


def test_restart_keeps_the_content_and_goes_on_in_the_same_segment(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    put(open_tier(), "abcdef")
    tier = open_tier()
    assert tier.read([make_key(name) for name in "abcdef"]) == [make_block(n) for n in "abcdef"]
    put(tier, "g")
    assert len(segment_files(tmp_path)) == 2
    tier.check_invariants()


def test_oldest_segment_goes_first(open_tier: OpenTier) -> None:
    tier = open_tier(num_segments=2)
    put(tier, "abcdefghi")
    assert held(tier, "abcdefghi") == "efghi"
    assert tier.num_evictions == 4
    tier.check_invariants()


def test_used_blocks_outlive_their_segment_once(open_tier: OpenTier) -> None:
    tier = open_tier(num_segments=2)
    put(tier, "abcdefgh")
    tier.read([make_key("b")])
    put(tier, "i")
    assert held(tier, "abcdefghi") == "befghi"
    put(tier, "jklmnop")
    assert make_key("b") not in tier
    tier.check_invariants()


def test_at_most_half_of_a_segment_moves_on(open_tier: OpenTier) -> None:
    tier = open_tier(num_segments=2)
    put(tier, "abcdefgh")
    tier.read([make_key(name) for name in "abcd"])
    put(tier, "i")
    assert held(tier, "abcd") == "ab"


def test_flipped_byte_on_disk_is_a_miss_and_the_others_are_fine(
    open_tier: OpenTier, tmp_path: Path
) -> None:
    tier = open_tier()
    put(tier, "abc")
    flip_byte(segment_files(tmp_path)[0], HEADER_BYTES + RECORD_BYTES + RECORD_HEADER_BYTES + 500)
    assert tier.read([make_key("a"), make_key("b"), make_key("c")]) == [make_block("a")]
    assert tier.read([make_key("c")]) == [make_block("c")]
    assert (tier.num_bad_digests, make_key("b") in tier) == (1, False)
    tier.check_invariants()
    put(tier, "b")
    assert tier.read([make_key("b")]) == [make_block("b")]


def test_torn_tail_is_cut_off_at_restart(open_tier: OpenTier, tmp_path: Path) -> None:
    put(open_tier(), "abc")
    path = segment_files(tmp_path)[0]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    tier = open_tier()
    assert held(tier, "abc") == "ab"
    assert path.stat().st_size == SegmentHeader(b"", 1000, 0).offset(2)
    put(tier, "d")
    assert tier.read([make_key("d")]) == [make_block("d")]
    tier.check_invariants()


@pytest.mark.parametrize("content", [b"", b"somebody else's file", bytes(4096)])
def test_foreign_file_is_refused_and_left_alone(
    open_tier: OpenTier, tmp_path: Path, content: bytes
) -> None:
    put(open_tier(), "ab")
    foreign = tmp_path / "nvme" / "000000000099.seg"
    foreign.write_bytes(content)
    tier = open_tier()
    assert tier.num_refused_segments == 1
    assert foreign.read_bytes() == content
    assert held(tier, "ab") == "ab"
    put(tier, "cdefghijklmnopqrstuvw")
    assert foreign.read_bytes() == content
    tier.check_invariants()


def test_segment_under_another_sequence_is_refused(open_tier: OpenTier, tmp_path: Path) -> None:
    put(open_tier(), "ab")
    segment_files(tmp_path)[0].rename(tmp_path / "nvme" / "000000000050.seg")
    tier = open_tier()
    assert (tier.num_refused_segments, len(tier)) == (1, 0)


def test_identities_do_not_share_blocks(open_tier: OpenTier) -> None:
    tier = open_tier()
    other = make_block("a", identity=b"other-identity-0")
    tier.append([make_block("a"), other])
    assert tier.read([other.key]) == [other]
    assert tier.read([make_key("b", other.key.kv_identity)]) == []
    tier = open_tier()
    assert tier.read([other.key]) == [other]
    assert tier.read([make_key("a")]) == [make_block("a")]
    tier.check_invariants()


def test_smaller_budget_after_restart_is_held(open_tier: OpenTier) -> None:
    put(open_tier(num_segments=4), "abcdefghijkl")
    tier = open_tier(num_segments=2)
    assert held(tier, "abcdefghijkl") == "efghijkl"
    tier.check_invariants()


def test_block_larger_than_a_segment_is_dropped_and_counted(open_tier: OpenTier) -> None:
    tier = open_tier()
    assert tier.append([make_block("a", num_bytes=SEGMENT_BYTES)]) == 0
    assert tier.num_dropped == 1


def test_folder_has_one_owner(open_tier: OpenTier, tmp_path: Path) -> None:
    open_tier()
    with pytest.raises(NvmeFolderInUseError, match="PAGODA_KVSTORE_NVME_DIR"):
        NvmeFolder(tmp_path / "nvme")


def test_store_id_survives_a_restart(tmp_path: Path) -> None:
    first = NvmeFolder(tmp_path)
    assert first.store_id(lambda: "kvstore-1") == "kvstore-1"
    first.close()
    second = NvmeFolder(tmp_path)
    assert second.store_id(lambda: "kvstore-2") == "kvstore-1"
    second.close()


def test_write_error_drops_the_block_and_keeps_the_segment_whole(
    open_tier: OpenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tear(fd: int, parts: object, offset: int) -> int:
        os.pwrite(fd, b"torn", offset)
        raise OSError(errno.EIO, "Input/output error")

    now = 0.0
    tier = open_tier(clock=lambda: now)
    put(tier, "a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", tear)
        put(tier, "b")
    now += RETRY_SECONDS
    put(tier, "c")
    assert (held(tier, "abc"), tier.num_dropped) == ("ac", 1)
    tier.check_invariants()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_budget_holds_under_random_load_and_restarts(open_tier: OpenTier, seed: int) -> None:
    rng = random.Random(seed)
    tier = open_tier(num_segments=5)
    names = [str(i) for i in range(60)]
    for step in range(600):
        name = rng.choice(names)
        size, identity = rng.choice([(1000, b"i" * 16), (1000, b"j" * 16), (300, b"i" * 16)])
        block = make_block(f"{name}/{size}", num_bytes=size, identity=identity)
        if rng.random() < 0.6:
            tier.append([block])
        else:
            assert tier.read([block.key]) in ([], [block])
        if step % 100 == 99:
            tier = open_tier(num_segments=5)
        tier.check_invariants()
    assert tier.num_bad_digests == 0
