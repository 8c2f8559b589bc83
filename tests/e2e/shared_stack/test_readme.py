"""What the README shows works as pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.stack import PAGODA, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

README = (Path(__file__).parents[3] / "README.md").read_text()


def environ_of(stack: Stack) -> dict[str, str]:
    """The environment after `set -a; . .pagoda/env`."""
    lines = (stack.home / "env").read_text().splitlines()
    named = dict(line.split("=", 1) for line in lines)
    return {**os.environ, **named, "PAGODA_HOME": str(stack.home)}


def test_the_openai_script_streams(any_stack: Stack) -> None:
    match = re.search(r"<<'EOF'\n(.*?)\nEOF", README, re.DOTALL)
    assert match is not None
    done = subprocess.run(
        [sys.executable, "-c", match[1]],
        env=environ_of(any_stack), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_chat_answers_one_message(any_stack: Stack) -> None:
    done = subprocess.run(
        [PAGODA, "chat", "--message", "Who is there?"],
        env=environ_of(any_stack), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_file_the_readme_links_to_exists() -> None:
    root = Path(__file__).parents[3]
    links = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert [link for link in links if not (root / link).exists()] == []
