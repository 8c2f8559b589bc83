"""From the plays to documents the model learns from: speeches, dialogues, scripts.

Knows the layout of `tinyshakespeare.txt` and the chat roles. Knows nothing of tokens or tensors.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPUS_PATH = Path(__file__).with_name("tinyshakespeare.txt")

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Speech:
    """What one character says without being interrupted."""

    speaker: str
    text: str


def read_speeches(path: Path = CORPUS_PATH) -> list[Speech]:
    """Return the speeches of the corpus in order, without the characters who say nothing.

    The file writes a speech as `SPEAKER:`, a newline, its lines, and then an empty line. Some
    characters only act (a stage direction lost its text); their empty speeches are left out.
    """
    speeches = []
    for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
        speaker, _, text = paragraph.strip().partition(":\n")
        if text.strip():
            speeches.append(Speech(speaker, text.strip()))
    return speeches


def split_held_out(speeches: list[Speech], fraction: float) -> tuple[list[Speech], list[Speech]]:
    """Split into (training, held-out), the held-out part being the last `fraction` of the bytes.

    A contiguous tail, not a random sample: speeches answer each other, so a sample would leak.
    """
    budget_bytes = fraction * sum(len(speech.text.encode()) for speech in speeches)
    start = len(speeches)
    while budget_bytes > 0:
        start -= 1
        budget_bytes -= len(speeches[start].text.encode())
    return speeches[:start], speeches[start:]


def persona(speaker: str) -> str:
    """Return the system message that casts the assistant: `You are King Richard III.`."""
    words = (word if set(word) <= set("IVX") else word.capitalize() for word in speaker.split())
    return f"You are {' '.join(words)}."


def as_dialogue(speeches: Sequence[Speech], *, has_persona: bool = False) -> list[Message]:
    """Give the speeches alternately to the user and to the assistant, the user first."""
    messages = [{"role": "system", "content": persona(speeches[1].speaker)}] if has_persona else []
    for index, speech in enumerate(speeches):
        role = "assistant" if index % 2 else "user"
        messages.append({"role": role, "content": speech.text})
    return messages


def as_script(speeches: Sequence[Speech]) -> str:
    """Write the speeches as the corpus does, so that plain completion works beside chat."""
    return "\n\n".join(f"{speech.speaker}:\n{speech.text}" for speech in speeches)


def cut_scenes(
    speeches: Sequence[Speech], rng: random.Random, max_speeches: int
) -> Iterator[Sequence[Speech]]:
    """Cut the corpus into runs of an even number of speeches, log-uniform in [2, max_speeches].

    Half of the calls skip the first speech, so that over many epochs every speech is spoken by
    the user as often as by the assistant. Runs differ on every call; a lone last speech is lost.
    """
    start = rng.randrange(2)
    while start + 2 <= len(speeches):
        num_pairs = round(math.exp(rng.uniform(0, math.log(max_speeches / 2))))
        stop = min(start + 2 * num_pairs, start + (len(speeches) - start) // 2 * 2)
        yield speeches[start:stop]
        start = stop


def sample_documents(
    speeches: Sequence[Speech],
    rng: random.Random,
    *,
    max_speeches: int = 64,
    script_share: float = 0.15,
    persona_share: float = 0.35,
) -> list[list[Message] | str]:
    """Return one epoch of documents in random order: dialogues, and some scripts as plain text."""
    documents: list[list[Message] | str] = []
    for scene in cut_scenes(speeches, rng, max_speeches):
        if rng.random() < script_share:
            documents.append(as_script(scene))
        else:
            documents.append(as_dialogue(scene, has_persona=rng.random() < persona_share))
    rng.shuffle(documents)
    return documents


def held_out_dialogues(speeches: Sequence[Speech], num_speeches: int = 8) -> list[list[Message]]:
    """Return the fixed dialogues on which the model is judged: `num_speeches` each, no persona."""
    starts = range(0, len(speeches) - num_speeches + 1, num_speeches)
    return [as_dialogue(speeches[start : start + num_speeches]) for start in starts]
