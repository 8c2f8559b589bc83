"""The demo model's folder."""

from pathlib import Path

DEMO_MODEL = Path(__file__).parents[2] / "demo" / "model"


def tokenizer_json() -> str:
    """Return the text of its tokenizer.json."""
    return (DEMO_MODEL / "tokenizer.json").read_text(encoding="utf-8")
