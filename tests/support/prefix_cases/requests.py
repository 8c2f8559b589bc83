"""Requests of made-up applications: their texts are this repository's own documents.

The tools are those of `tests/schemas`.
"""

import json
import random
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Asked:
    """A request: its messages, its tools, and what else decides whose blocks it can use."""

    messages: tuple[tuple[str, str], ...]
    tools: tuple[dict[str, Any], ...] = ()
    salt: str = ""
    model: str = "m"


@cache
def texts() -> tuple[str, ...]:
    """Return paragraphs of the repository's documents."""
    found = []
    for path in sorted((ROOT / "docs" / "adr").glob("000*.md")):
        for paragraph in path.read_text().split("\n\n"):
            words = _SPACE.sub(" ", paragraph.strip())
            if len(words) > 80 and not words.startswith(("#", "|", "```")):
                found.append(words)
    return tuple(found)


@cache
def schemas() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((ROOT / "tests" / "schemas" / "functions.json").read_text()))


def application(rng: random.Random, *, tools: bool | None = None) -> Asked:
    """Return a first request to an application of some kind."""
    system = " ".join(rng.sample(texts(), rng.randint(2, 4)))
    has_tools = rng.random() < 0.3 if tools is None else tools
    offered = some_tools(rng) if has_tools else ()
    return Asked((("system", system), ("user", question(rng))), offered)


def some_tools(rng: random.Random) -> tuple[dict[str, Any], ...]:
    chosen = rng.sample(schemas(), rng.randint(3, 6))
    return tuple(
        {
            "type": "function",
            "function": {
                "name": re.sub(r"\W+", "_", schema["name"]),
                "description": question(rng),
                "parameters": schema["schema"],
            },
        }
        for schema in chosen
    )


def question(rng: random.Random) -> str:
    words = rng.choice(texts()).split()
    start = rng.randrange(max(1, len(words) - 12))
    return " ".join(words[start : start + rng.randint(6, 24)])


def go_on(rng: random.Random, asked: Asked) -> Asked:
    """Return the conversation's next request."""
    more = (("assistant", rng.choice(texts())), ("user", question(rng)))
    return replace(asked, messages=(*asked.messages, *more))


def ask_anew(rng: random.Random, asked: Asked) -> Asked:
    """Return another conversation of the same application."""
    return replace(asked, messages=(asked.messages[0], ("user", question(rng))))


def follow(rng: random.Random, asked: Asked) -> Asked:
    """Return a request that may come after one: another, the next, or the same."""
    follower = rng.choice((ask_anew, go_on, lambda _rng, same: same))
    return follower(rng, asked)


def with_system(asked: Asked, system: str) -> Asked:
    return replace(asked, messages=(("system", system), *asked.messages[1:]))
