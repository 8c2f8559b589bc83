"""The C sources under the compiler's sanitizers, at random shapes."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support.seeds import seed_of_tests

from pagoda_kernels.native.library import (
    FLAGS,
    INSTRUCTION_SETS,
    SOURCES,
    best_instruction_set,
    processor_flags,
)

PROGRAM = Path(__file__).with_name("sanitised.c")
COMPILER = shutil.which("cc") or "cc"
BEST = best_instruction_set(processor_flags())


@pytest.mark.parametrize(
    ("checks", "num_threads", "instruction_set"),
    [
        ("address,undefined", 3, BEST),
        ("address,undefined", 1, "avx2"),  # vectors of another width, other layouts of codes
        ("thread", 3, BEST),
    ],
    ids=["address", "address-avx2", "thread"],
)
def test_nothing_is_found(
    checks: str, num_threads: int, instruction_set: str | None, tmp_path: Path
) -> None:
    if instruction_set is None or not INSTRUCTION_SETS[instruction_set][0] <= processor_flags():
        pytest.skip("this processor has no such instructions")
    program = tmp_path / "sanitised"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-O3")]
    # As it is written: no access is optimised away, and to compile takes a quarter of the time.
    command = [COMPILER, *flags, *INSTRUCTION_SETS[instruction_set][1], "-O0", "-g"]
    command += [f"-fsanitize={checks}", "-fno-sanitize-recover=all", f"-I{SOURCES}"]
    command += ["-o", str(program), str(PROGRAM), "-lm"]
    subprocess.run(command, check=True, timeout=120)
    ran = subprocess.run(
        [str(program), str(seed_of_tests()), str(num_threads)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout == "done\n"
