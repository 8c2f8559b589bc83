"""The seed of what tests draw: the same in every run, so that a test fails because of a change.

`PAGODA_TEST_SEED=N` names another one, `PAGODA_TEST_SEED=random` draws one.
"""

import os
import secrets

VARIABLE = "PAGODA_TEST_SEED"
DEFAULT = 20_260_101


def seed_of_tests() -> int:
    """Return the seed, printed: pytest shows that of a failed test."""
    given = os.environ.get(VARIABLE) or str(DEFAULT)
    seed = secrets.randbits(32) if given == "random" else int(given)
    print(f"{VARIABLE}={seed}", flush=True)
    return seed
