"""Prompts that mean nothing."""

import random


def random_tokens(count: int) -> list[int]:
    """Return so many tokens below 256, always the same for one count."""
    rng = random.Random(count)
    return [rng.randrange(256) for _ in range(count)]
