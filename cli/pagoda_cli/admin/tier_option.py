"""The option that gives somebody another tier."""

from typing import Annotated

import typer

NONE = "none"

NewTier = Annotated[str, typer.Option("--tier", help=f"Its limits; '{NONE}': none of its own.")]


def given(tier: str) -> str | None:
    """Return the tier as /admin takes it."""
    return None if tier == NONE else tier
