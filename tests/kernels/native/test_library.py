"""Which library is taken, where it is looked for, and when it is compiled; not what is in it."""

import ctypes
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagoda_kernels.native import library as module
from pagoda_kernels.native.library import (
    INSTRUCTION_SETS,
    MACHINES,
    best_instruction_set,
    find_or_compile,
    must_be_compiled,
    native_library,
    processor_flags,
)


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is compiled yet, and the user's cache is empty; the sources are quickly compiled."""
    for name in ("package", "sources"):
        (tmp_path / name).mkdir()
    (tmp_path / "sources" / "pagoda.c").write_text("int pagoda_answer(void) { return 42; }\n")
    monkeypatch.setattr(module, "HERE", tmp_path / "package")
    monkeypatch.setattr(module, "SOURCES", tmp_path / "sources")
    flags = INSTRUCTION_SETS["avx512"][0]
    monkeypatch.setattr(module, "processor_flags", lambda: flags)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native_library.cache_clear()
    yield tmp_path
    native_library.cache_clear()


def test_the_best_instruction_set_is_taken() -> None:
    all_flags = frozenset().union(*(needed for needed, _ in INSTRUCTION_SETS.values()))
    assert best_instruction_set(all_flags) == "amx"
    assert best_instruction_set(all_flags - {"amx_tile"}) == "avx512bf16"
    assert best_instruction_set(all_flags - {"avx512_bf16"}) == "avx512"
    assert best_instruction_set(frozenset({"avx2", "fma", "sse4_2"})) == "avx2"
    assert best_instruction_set(all_flags - {"avx2", "avx512f"}) == "sse4"
    assert best_instruction_set(frozenset({"fp", "asimd", "crc32"})) == "neon"
    assert best_instruction_set(frozenset({"sse2"})) is None
    assert best_instruction_set(frozenset()) is None


def test_compiled_once_and_found_again(no_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = find_or_compile("avx512")
    assert compiled.parent == no_library / "package" / "built"
    assert ctypes.CDLL(str(compiled)).pagoda_answer() == 42
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_or_compile("avx512") == compiled
    assert [path.name for path in compiled.parent.iterdir()] == [compiled.name]  # no half of it


@pytest.mark.usefixtures("no_library")
def test_it_must_be_compiled_once() -> None:
    assert must_be_compiled()
    find_or_compile("avx512")
    assert not must_be_compiled()


def test_processes_that_start_together_compile_once(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As workers of a host do: each waits for the one that compiles. Threads stand for them."""
    log = no_library / "log"
    compiler = no_library / "compiler"
    compiler.write_text(f'#!/bin/sh\necho one >> {log}\nexec cc "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    with ThreadPoolExecutor(3) as processes:
        found = set(processes.map(find_or_compile, ["avx512"] * 3))

    assert len(found) == 1
    assert log.read_text() == "one\n"


def test_the_users_cache_where_the_package_cannot_be_written(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, path: Path, compiler: str) -> Path:
        if path.parent == no_library / "package" / "built":
            raise PermissionError(path)
        return path

    monkeypatch.setattr(module, "compile_library", refuse)
    assert find_or_compile("avx512").parent == no_library / "cache" / "pagoda" / "native"


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("no-such-compiler", "no C compiler (cc) is installed"), ("false", "false failed")],
)
@pytest.mark.usefixtures("no_library")
def test_without_a_compiler_there_is_none_and_one_line_says_so(
    compiler: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", compiler)
    with caplog.at_level(logging.WARNING):
        assert native_library() is None
        assert native_library() is None
    (record,) = caplog.records
    assert reason in record.getMessage()


def test_instructions_that_the_compiler_does_not_know_are_not_taken(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GCC 10 and AMX; `NativeLibrary` would miss what these sources have not."""
    compiler = no_library / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-mavx512*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    flags = frozenset().union(*(INSTRUCTION_SETS[name][0] for name in ("avx512", "avx2", "sse4")))
    monkeypatch.setattr(module, "processor_flags", lambda: flags)
    monkeypatch.setattr(module, "NativeLibrary", lambda path, name: (path.is_file(), name))
    assert native_library() == (True, "avx2")
    assert not must_be_compiled()

    native_library.cache_clear()  # as in an image without a compiler
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native_library() == (True, "avx2")


def test_without_the_kernels_leave_there_are_no_tile_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = frozenset().union(*(needed for needed, _ in INSTRUCTION_SETS.values()))
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags : {' '.join(every)}\n")
    monkeypatch.setattr(module, "Path", lambda path: cpuinfo)
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module, "_may_use_amx", lambda: True)
    assert best_instruction_set(processor_flags()) == "amx"
    monkeypatch.setattr(module, "_may_use_amx", lambda: False)
    assert best_instruction_set(processor_flags()) == "avx512bf16"
    cpuinfo.write_text(f"vendor_id : GenuineIntel\nflags : {' '.join(every)}\n")
    assert best_instruction_set(processor_flags()) == "avx512"  # whose pairs take longer
    monkeypatch.setattr(module, "_may_use_amx", lambda: True)
    assert best_instruction_set(processor_flags()) == "amx"


def test_what_others_can_write_is_not_run(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package cannot be written, and somebody else can write the cache."""
    (no_library / "package").rmdir()
    compiled = find_or_compile("avx512")
    assert compiled.is_relative_to(no_library / "cache")
    assert find_or_compile("avx512") == compiled
    monkeypatch.setenv("CC", "no-such-compiler")
    compiled.parent.chmod(0o777)
    with pytest.raises(FileNotFoundError, match="no C compiler"):
        find_or_compile("avx512")


def test_older_ones_are_removed(no_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = find_or_compile("avx512")
    monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-DCHANGED"))
    newer = find_or_compile("avx512")
    assert newer != older
    assert [path for path in older.parent.iterdir() if path.suffix == ".so"] == [newer]


def test_what_a_killed_compile_left_is_removed(no_library: Path) -> None:
    built = no_library / "package" / "built"
    killed, running = built / "compiling-killed", built / "compiling-running"
    for folder in (killed, running):
        folder.mkdir(parents=True)
        (folder / "half.so").write_bytes(b"half")
    os.utime(killed, (0, 0))
    library = find_or_compile("avx512")
    assert sorted(built.iterdir()) == [running, library]


def test_every_set_is_compiled_for_some_machine() -> None:
    assert [name for names in MACHINES.values() for name in names] == list(INSTRUCTION_SETS)


def test_a_processor_without_vectors_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "processor_flags", lambda: frozenset({"sse2"}))
    native_library.cache_clear()
    assert native_library() is None
    assert not must_be_compiled()
    native_library.cache_clear()


def test_other_sources_are_another_library(no_library: Path) -> None:
    before = find_or_compile("avx512")
    (no_library / "sources" / "pagoda.c").write_text("int pagoda_answer(void) { return 6; }\n")
    after = find_or_compile("avx512")
    assert after != before
    assert ctypes.CDLL(str(after)).pagoda_answer() == 6
