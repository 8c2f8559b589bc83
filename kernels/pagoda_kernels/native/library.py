"""The shared library: found, or compiled from `sources/` for this processor, and loaded.

One library for each instruction set; the best that this processor has is taken. Compiled ones lie
in `built/` beside this file, or in the user's cache where the package cannot be written, under a
name that changes with the sources. Without a compiler and a library there is None, and the log says
so once.
"""

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pagoda_kernels.native.seats import NoSeatError, Seat
from pagoda_kernels.native.structures import (
    AttentionShape,
    Decoder,
    Experts,
    Latents,
    Linear,
    QuantiseJob,
    SampleJob,
    Step,
)

_LOGGER = logging.getLogger(__name__)

HERE = Path(__file__).parent
SOURCES = HERE / "sources"
COMPILE_SECONDS = 120
COMPILING = "compiling-"  # what a folder is called meanwhile
SCRATCH_BYTES = 1 << 22  # of each thread; what nobody writes to takes no memory
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wno-psabi",
    "-pthread",
)

_AVX512_BF16 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "fma"})
_AVX512_BF16_FLAGS = (
    "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma",
)  # fmt: skip
_AMX = frozenset({"amx_tile", "amx_bf16"})
_BF16_PAIRS = frozenset({"avx512_bf16"})
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18

# Name -> what the processor must have, as /proc/cpuinfo calls it, and what the compiler is told.
# The best first.
INSTRUCTION_SETS: Mapping[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "amx": (
        _AVX512_BF16 | _AMX,
        (*_AVX512_BF16_FLAGS, "-mamx-tile", "-mamx-bf16"),
    ),
    "avx512bf16": (_AVX512_BF16, _AVX512_BF16_FLAGS),
    "avx512": (
        frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}),
        ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
    ),
    "avx2": (frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
    "sse4": (frozenset({"ssse3", "sse4_1", "sse4_2"}), ("-mssse3", "-msse4.1", "-msse4.2")),
    "neon": (frozenset({"asimd"}), ()),
}
MACHINES: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("amx", "avx512bf16", "avx512", "avx2", "sse4"),
    "aarch64": ("neon",),
}
"""Which of them a kind of processor can have."""


class NativeLibrary:
    """A loaded library and its threads."""

    def __init__(self, path: Path, instruction_set: str) -> None:
        """Load it.

        Raises:
            OSError: it cannot be loaded.
        """
        self.path = path
        self.instruction_set = instruction_set
        self._threads: dict[int, int] = {}
        self._seat: Seat | None = None
        self._num_shared = 0
        library = ctypes.CDLL(str(path))
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        linear = ctypes.POINTER(Linear)
        self._open_threads = library.pagoda_open_threads
        self._open_threads.argtypes = [ctypes.c_int, ctypes.c_size_t]
        self._open_threads.restype = pointer
        self._share = library.pagoda_share_processors
        self._share.argtypes, self._share.restype = [pointer, pointer, ctypes.c_int], None
        self.packed_bytes = library.pagoda_packed_bytes
        self.packed_bytes.argtypes, self.packed_bytes.restype = [linear], integer
        self.scratch_bytes = library.pagoda_scratch_bytes
        self.scratch_bytes.argtypes = [ctypes.POINTER(AttentionShape)]
        self.scratch_bytes.restype = integer
        self.pack = library.pagoda_pack
        self.pack.argtypes, self.pack.restype = [pointer, linear, pointer, pointer], None
        self.pack_quantised = library.pagoda_pack_quantised
        self.pack_quantised.argtypes = [pointer, linear, pointer, pointer, pointer, pointer]
        self.pack_quantised.restype = None
        self.count_exceptions = library.pagoda_count_exceptions
        self.count_exceptions.argtypes = [pointer, linear, pointer, pointer]
        self.count_exceptions.restype = None
        self.pack_twelve = library.pagoda_pack_twelve
        self.pack_twelve.argtypes = [pointer, linear, pointer, pointer, pointer]
        self.pack_twelve.restype = None
        self.quantise = library.pagoda_quantise
        self.quantise.argtypes = [pointer, ctypes.POINTER(QuantiseJob)]
        self.quantise.restype = None
        self.unpack_rows = library.pagoda_unpack_rows
        self.unpack_rows.argtypes = [linear, pointer, integer, pointer]
        self.unpack_rows.restype = None
        self.product = library.pagoda_product
        self.product.argtypes = [pointer, linear, pointer, integer, pointer, pointer, pointer]
        self.product.restype = None
        experts = ctypes.POINTER(Experts)
        self.experts_bytes = library.pagoda_experts_bytes
        self.experts_bytes.argtypes, self.experts_bytes.restype = [experts, integer], integer
        self.experts_scratch_bytes = library.pagoda_experts_scratch_bytes
        self.experts_scratch_bytes.argtypes = [experts]
        self.experts_scratch_bytes.restype = integer
        self.experts = library.pagoda_experts
        self.experts.argtypes = [
            pointer, experts, pointer, pointer, integer, pointer, pointer,
        ]  # fmt: skip
        self.experts.restype = None
        latents, shape = ctypes.POINTER(Latents), ctypes.POINTER(AttentionShape)
        self.latents_bytes = library.pagoda_latents_bytes
        self.latents_bytes.argtypes = [latents, shape, integer]
        self.latents_bytes.restype = integer
        self.latents_scratch_bytes = library.pagoda_latents_scratch_bytes
        self.latents_scratch_bytes.argtypes = [latents, shape]
        self.latents_scratch_bytes.restype = integer
        self.sample_bytes = library.pagoda_sample_bytes
        self.sample_bytes.argtypes, self.sample_bytes.restype = [integer], integer
        self.sample = library.pagoda_sample
        self.sample.argtypes, self.sample.restype = [pointer, ctypes.POINTER(SampleJob)], None
        self.layers = library.pagoda_layers
        self.layers.argtypes = [
            pointer, ctypes.POINTER(Decoder), ctypes.POINTER(Step), integer, integer,
        ]  # fmt: skip
        self.layers.restype = integer

    def share_processors(self, table: Path, num_processors: int) -> Seat | None:
        """Divide this process's processors with the others at `table`, from now on.

        Args:
            table: of the seats.
            num_processors: how many there are to be used.

        None without a seat, or without the file: all goes on as before; the log says so.
        """
        try:
            self._seat = Seat(table)
        except (NoSeatError, OSError) as error:
            _LOGGER.warning("this worker shares its processors with nobody: %s", error)
            return None
        self._threads.clear()
        self._num_shared = num_processors
        return self._seat

    def threads(self, num_threads: int) -> int:
        """Return a pool of so many threads, the calling one included, or of as many as may be.

        Who shares processors gets one for each of them, of which as many work as are his at the
        moment. Made once, never closed.

        Raises:
            MemoryError: there is no memory.
        """
        if self._seat is not None:
            num_threads = self._num_shared
        pool = self._threads.get(num_threads)
        if pool is None:
            pool = self._open_threads(num_threads, SCRATCH_BYTES)
            if pool is None:
                raise MemoryError(
                    f"{num_threads} threads for the native operators cannot be started"
                )
            self._threads[num_threads] = pool
            if self._seat is not None:
                self._share(pool, self._seat.table, self._seat.index)
        return pool


@functools.cache
def native_library() -> NativeLibrary | None:
    """Return the library for this processor, compiled if need be; None if there is none for it."""
    flags = processor_flags()
    if best_instruction_set(flags) is None:
        _LOGGER.info(
            "this processor has no SSE4 or NEON, or is not known: torch's operators are taken"
        )
        return None
    try:
        return NativeLibrary(*_find_or_compile_any(flags))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        _LOGGER.warning(
            "no native operators, so torch's are taken, which are slower: %s", _reason(error)
        )
        return None


def _find_or_compile_any(flags: frozenset[str]) -> tuple[Path, str]:
    """Return the best library that is there or that the compiler can make, and its name.

    Raises:
        OSError: none is there, and there is no compiler or nowhere to write.
        SubprocessError: none is there, and the compiler fails for all of them.
    """
    *better, least = _instruction_sets(flags)
    for name in better:
        try:
            return find_or_compile(name), name
        except (OSError, subprocess.CalledProcessError) as error:
            _LOGGER.info("without %s, which the compiler may not know: %s", name, _reason(error))
    return find_or_compile(least), least


def must_be_compiled() -> bool:
    """Tell whether `native_library` has to compile first, which takes 10 to 20 s."""
    names = _instruction_sets(processor_flags())
    return bool(names) and not any(_found(*_places(name)) for name in names)


def _instruction_sets(flags: frozenset[str]) -> list[str]:
    return [name for name, (needed, _) in INSTRUCTION_SETS.items() if needed <= flags]


def best_instruction_set(flags: frozenset[str]) -> str | None:
    """Return the first instruction set that a processor with these flags has."""
    return next(iter(_instruction_sets(flags)), None)


def processor_flags() -> frozenset[str]:
    """Return the flags of /proc/cpuinfo; none on unknown machines, and on macOS, which has none.

    Without those that are of no use: tile registers that the kernel gives nobody, as a hypervisor
    may hide them, too; and then, on Intel, products of pairs of bf16, which take longer there than
    those of floats (ADR 78).
    """
    if platform.machine() not in MACHINES:
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    names = "flags", "Features"  # as x86-64 and aarch64 call them
    line = next((line for line in text.splitlines() if line.startswith(names)), "")
    flags = frozenset(line.partition(":")[2].split())
    if flags >= _AMX and _may_use_amx():
        return flags
    return flags - _AMX - (_BF16_PAIRS if "GenuineIntel" in text else frozenset())


def _may_use_amx() -> bool:
    """Ask the kernel for the tile registers, which no process has unasked (Linux: xstate.rst)."""
    system_call = ctypes.CDLL(None).syscall
    system_call.restype = ctypes.c_long
    arguments = _ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA
    return bool(system_call(*(ctypes.c_long(argument) for argument in arguments)) == 0)


def find_or_compile(name: str) -> Path:
    """Return the library of an instruction set, compiled if it is not there.

    Raises:
        OSError: there is no compiler, or nowhere to write.
        SubprocessError: the compiler fails.
    """
    beside, cached = _places(name)
    if found := _found(beside, cached):
        return found
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc) is installed")
    with _one_at_a_time():
        if found := _found(beside, cached):  # by whom this one has waited for
            return found
        try:
            beside.parent.mkdir(exist_ok=True)
            return compile_library(name, beside, compiler)
        except OSError as error:  # the package is installed where this user cannot write
            _LOGGER.debug("%s cannot be written (%s)", beside.parent, error)
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return compile_library(name, cached, compiler)


def _places(name: str) -> tuple[Path, Path]:
    """Return where a library may be: beside the package, and in the user's cache."""
    file_name = f"pagoda-{name}-{_digest(name)}.so"
    return HERE / "built" / file_name, _cache_folder() / file_name


def _found(beside: Path, cached: Path) -> Path | None:
    """Return a library that is there; of the user's cache only if nobody else can have put it."""
    if beside.is_file():
        return beside
    return cached if cached.is_file() and _is_ours(cached) else None


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one process of this host compile these sources: others wait, for the same library."""
    with (SOURCES / "pagoda.c").open("rb") as source:
        with contextlib.suppress(OSError):  # a file system without locks: each compiles its own
            fcntl.flock(source, fcntl.LOCK_EX)  # until it is closed
        yield


def compile_library(name: str, path: Path, compiler: str = "cc", *extra: str) -> Path:
    """Compile for an instruction set; whoever looks for `path` finds all of it or nothing.

    Raises:
        OSError: the folder cannot be written, or there is no such compiler.
        SubprocessError: the compiler fails.
    """
    _remove_unfinished(path.parent)
    with tempfile.TemporaryDirectory(prefix=COMPILING, dir=path.parent) as folder:
        output = Path(folder) / path.name
        command = [compiler, *FLAGS, *INSTRUCTION_SETS[name][1], *extra, "-o", str(output)]
        command += [str(SOURCES / "pagoda.c"), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        output.replace(path)
    for older in path.parent.glob(f"pagoda-{name}-*.so"):  # of other sources
        if older != path:
            older.unlink(missing_ok=True)
    return path


def _remove_unfinished(folder: Path) -> None:
    """Remove what processes left that were killed while they compiled, not what others do now."""
    oldest = time.time() - 2 * COMPILE_SECONDS
    for left in folder.glob(f"{COMPILING}*"):
        with contextlib.suppress(OSError):  # whose it was has removed it, or somebody else has
            if left.stat().st_mtime < oldest:
                shutil.rmtree(left)


def _is_ours(path: Path) -> bool:
    """Tell whether nobody else can have put this file here: it is run."""
    for each in (path, path.parent):
        found = each.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


def _digest(name: str) -> str:
    built_for = FLAGS, INSTRUCTION_SETS[name][1], platform.machine(), platform.libc_ver()
    digest = hashlib.blake2b(repr(built_for).encode(), digest_size=8)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "pagoda" / "native"


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{error.cmd[0]} failed: {error.stderr.strip()[-500:]}"
    return str(error)
