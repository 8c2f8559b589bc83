"""What groups leave a process, of trees of files as kernels and containers have them."""

import os
from pathlib import Path

import pytest

from pagoda_formats.control_groups import (
    memory_available,
    memory_left,
    memory_limit,
    num_processors,
)

MIB = 2**20
V1_UNLIMITED = "9223372036854771712"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    return tmp_path


def write(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def write_v2(folder: Path, limit: str | int, used: int, cached: int = 0) -> None:
    stat = f"anon {used}\ninactive_file {cached}\nactive_file {cached}"
    write(folder, memory__max=limit, memory__current=used, memory__stat=stat)


def write_v1(folder: Path, limit: str | int, used: int, cached: int = 0) -> None:
    stat = f"inactive_file 0\ntotal_inactive_file {cached}\ntotal_active_file {cached}"
    write(folder, memory__limit_in_bytes=limit, memory__usage_in_bytes=used, memory__stat=stat)


def of(root: Path) -> tuple[int | None, int | None]:
    return memory_limit(root, root), memory_left(root, root)


def test_the_tightest_of_all_groups_above_counts(groups: Path) -> None:
    write(groups / "self", cgroup="0::/user.slice/worker.service")
    write_v2(groups / "user.slice", 100 * MIB, 90 * MIB)
    write_v2(groups / "user.slice" / "worker.service", 50 * MIB, 20 * MIB)
    write_v2(groups / "user.slice" / "other.service", 1 * MIB, 0)
    assert of(groups) == (50 * MIB, 10 * MIB)


def test_cached_files_are_left(groups: Path) -> None:
    write(groups / "self", cgroup="0::/")
    write_v2(groups, 100 * MIB, 90 * MIB, cached=30 * MIB)
    assert of(groups) == (100 * MIB, 70 * MIB)


def test_more_cached_files_than_use_are_no_more_than_the_limit(groups: Path) -> None:
    write(groups / "self", cgroup="0::/")
    write_v2(groups, 100 * MIB, 90 * MIB, cached=300 * MIB)
    assert of(groups) == (100 * MIB, 100 * MIB)


def test_a_name_may_be_any_bytes(groups: Path) -> None:
    (groups / "self" / "cgroup").write_bytes(b"0::/\xff.slice\n")
    write_v2(groups / "\udcff.slice", 100 * MIB, 90 * MIB)
    assert of(groups) == (100 * MIB, 10 * MIB)


def test_a_group_that_is_over_its_limit_has_nothing_left(groups: Path) -> None:
    write(groups / "self", cgroup="0::/")
    write_v2(groups, MIB, 2 * MIB)
    assert of(groups) == (MIB, 0)


def test_v1_has_a_tree_for_each_controller(groups: Path) -> None:
    write(groups / "self", cgroup="4:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n1:name=systemd:/x")
    write_v1(groups / "memory", V1_UNLIMITED, 900 * MIB)
    write_v1(groups / "memory" / "docker" / "1", 100 * MIB, 50 * MIB, cached=20 * MIB)
    assert of(groups) == (100 * MIB, 90 * MIB)


def test_in_a_container_the_root_is_the_group_that_has_another_name_outside(groups: Path) -> None:
    write(groups / "self", cgroup="4:memory:/docker/1")
    write_v1(groups / "memory", 100 * MIB, 50 * MIB)
    assert of(groups) == (100 * MIB, 50 * MIB)
    write(groups / "self", cgroup="0::/../other")
    write_v2(groups, 70 * MIB, 50 * MIB)
    assert of(groups) == (70 * MIB, 20 * MIB)


def test_of_a_hybrid_both_count(groups: Path) -> None:
    write(groups / "self", cgroup="4:memory:/a\n0::/a")
    write_v1(groups / "memory" / "a", 100 * MIB, 0)
    write_v2(groups / "unified" / "a", 200 * MIB, 150 * MIB)
    assert of(groups) == (100 * MIB, 50 * MIB)


def test_no_limit_is_none(groups: Path) -> None:
    assert of(groups / "none") == (None, None)
    write(groups / "self", cgroup="0::/a")
    write_v2(groups / "a", "max", 0)
    assert of(groups) == (None, None)


def test_what_cannot_be_read_limits_nothing(groups: Path) -> None:
    write(groups / "self", cgroup="0::/a/b")
    write_v2(groups, "many", 0)
    (groups / "a" / "memory.max").mkdir(parents=True)
    write(groups / "a" / "b", memory__max=MIB)  # and no word of what is used
    assert of(groups) == (None, None)


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("quota", "wanted"), [("50000", 1), ("100000", 1), ("250000", 3), ("1600000", 8), ("max", 8)]
)
@pytest.mark.usefixtures("processors")
def test_a_quota_of_time_bounds_processors(groups: Path, quota: str, wanted: int) -> None:
    write(groups / "self", cgroup="0::/a")
    write(groups / "a", cpu__max=f"{quota} 100000")
    assert num_processors(groups, groups) == wanted


@pytest.mark.parametrize(("quota", "wanted"), [("50000", 1), ("250000", 3), ("-1", 8)])
@pytest.mark.usefixtures("processors")
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_v1_bounds_them_too(groups: Path, mount: str, quota: str, wanted: int) -> None:
    write(groups / "self", cgroup="2:cpu,cpuacct:/a")
    write(groups / mount / "a", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert num_processors(groups, groups) == wanted
    assert num_processors(groups / "none", groups / "none") == 8


def test_the_smaller_of_host_and_group_is_available(groups: Path) -> None:
    assert memory_available(groups, groups) is None  # the kernel does not say
    (groups / "meminfo").write_text("MemTotal:  4096 kB\nMemAvailable:  2048 kB\n")
    write(groups / "self", cgroup="0::/")
    assert memory_available(groups, groups) == 2 * MIB
    for limit, used, available in (
        ("max", 0, 2 * MIB),
        (MIB, MIB // 4, MIB - MIB // 4),
        (MIB, 2 * MIB, 0),
        (1024 * MIB, 0, 2 * MIB),
    ):
        write_v2(groups, limit, used)
        assert memory_available(groups, groups) == available
