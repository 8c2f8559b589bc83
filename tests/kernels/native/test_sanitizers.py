"""The C sources under the compiler's sanitizers, at random shapes."""

import subprocess
from pathlib import Path

import pytest
from support.native_program import compiled
from support.seeds import seed_of_tests

from pagoda_kernels.native.library import (
    INSTRUCTION_SETS,
    best_instruction_set,
    processor_flags,
)

PROGRAM = Path(__file__).with_name("sanitised.c")
BEST = best_instruction_set(processor_flags())
LEFT_OUT = "pointer-overflow,object-size"
"""What else finds: an access out of bounds. They take half of the time to compile."""
OTHER = "avx2" if BEST != "avx2" else "sse4"  # vectors of another width, other layouts of codes


@pytest.mark.parametrize(
    ("checks", "num_threads", "instruction_set", "further_seed"),
    [
        ("address,undefined", 3, BEST, 0),
        ("address,undefined", 1, OTHER, 1),  # other shapes, too
        ("thread", 3, BEST, 2),
    ],
    ids=["address", "address-other", "thread"],
)
def test_nothing_is_found(
    checks: str,
    num_threads: int,
    instruction_set: str | None,
    further_seed: int,
    tmp_path: Path,
) -> None:
    if instruction_set is None or not INSTRUCTION_SETS[instruction_set][0] <= processor_flags():
        pytest.skip("this processor has no such instructions")
    further = ("-g", f"-fsanitize={checks}", f"-fno-sanitize={LEFT_OUT}")
    further += ("-fno-sanitize-recover=all",)
    program = compiled(PROGRAM, tmp_path, instruction_set, *further)
    ran = subprocess.run(
        [str(program), str(seed_of_tests() + further_seed), str(num_threads)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert ran.stdout == "done\n"
