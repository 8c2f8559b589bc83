"""How long a loop that runs for ever waits after a failure, before it tries again.

No library: the loops keep state between attempts and never give up, so the wait is all they share.
"""

import random


def retry_delay(seconds: float) -> float:
    """Return half to one and a half of `seconds`: who failed together comes back one by one."""
    return seconds * random.uniform(0.5, 1.5)
