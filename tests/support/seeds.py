"""The seed of what tests draw: the same in every run, so that a test fails because of a change.

`PAGODA_TEST_SEED=N` names another one, `PAGODA_TEST_SEED=random` draws one. `PAGODA_TEST_RUNS=8`
has random runs take eight times as many: for who changes what they are about.
"""

import os
import secrets

VARIABLE = "PAGODA_TEST_SEED"
RUNS_VARIABLE = "PAGODA_TEST_RUNS"
DEFAULT = 20_260_101


def seed_of_tests() -> int:
    """Return the seed, printed: pytest shows that of a failed test."""
    given = os.environ.get(VARIABLE) or str(DEFAULT)
    seed = secrets.randbits(32) if given == "random" else int(given)
    print(f"{VARIABLE}={seed}", flush=True)
    return seed


def runs(number: int) -> range:
    """Return the numbers of so many random runs, or of more where the environment asks for it."""
    return range(number * int(os.environ.get(RUNS_VARIABLE) or 1))
