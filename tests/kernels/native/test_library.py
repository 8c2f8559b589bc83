import logging
from pathlib import Path

import pytest

from pagoda_kernels.native import library as module
from pagoda_kernels.native.library import (
    INSTRUCTION_SETS,
    best_instruction_set,
    find_or_compile,
    native_library,
)


@pytest.fixture
def no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is compiled yet, and the user's cache is empty."""
    monkeypatch.setattr(module, "HERE", tmp_path / "package")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native_library.cache_clear()
    yield tmp_path
    native_library.cache_clear()


def test_the_best_instruction_set_is_taken() -> None:
    all_flags = frozenset().union(*(needed for needed, _ in INSTRUCTION_SETS.values()))
    assert best_instruction_set(all_flags) == "avx512bf16"
    assert best_instruction_set(all_flags - {"avx512_bf16"}) == "avx512"
    assert best_instruction_set(frozenset({"avx2", "fma", "sse4_2"})) == "avx2"
    assert best_instruction_set(frozenset({"avx2"})) == "portable"
    assert best_instruction_set(frozenset()) == "portable"


def test_compiled_once_and_found_again(no_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = find_or_compile("portable")
    assert compiled.parent == no_library / "package" / "built"
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_or_compile("portable") == compiled
    assert [path.name for path in compiled.parent.iterdir()] == [compiled.name]  # no half of it


def test_the_users_cache_where_the_package_cannot_be_written(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, path: Path, compiler: str) -> Path:
        if path.parent == no_library / "package" / "built":
            raise PermissionError(path)
        return path

    monkeypatch.setattr(module, "compile_library", refuse)
    assert find_or_compile("portable").parent == no_library / "cache" / "pagoda" / "native"


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


@pytest.mark.usefixtures("no_library")
def test_other_sources_are_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = module._digest("portable")
    monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-DCHANGED"))
    assert module._digest("portable") != before
