"""What a policy costs for each token of a stream, and what it costs who has none.

    PYTHONPATH=tests python benchmarks/serving/safety_cost.py [--patterns 1 10 100] [--repeats 7]

One thread takes one-token frames of a sequence and reads them, as a stream does; a token is four
characters of English. Prints the median of the repeats, in microseconds of CPU time a token.
"""

import argparse
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.tiny_tokenizer import write_model_folder

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda_gateway.safety.output_guard import OutputGuard
from pagoda_gateway.safety.policies.file import RuleSettings
from pagoda_gateway.safety.policies.policy import Rules
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.text.prompts import Prompt
from pagoda_gateway.text.tokenizer import ModelTokenizer

PROSE = (
    "Nobody knew when the lamp had last been lit, and nobody asked. The keeper came up the stairs "
    "each evening with the same can of oil, looked out over the water, and went down again. "
)
TOKEN_CHARS = 4
OPTIONS = OutputOptions(
    num_choices=1, stops=(), include_stop=False, num_logprobs=None, min_tokens=0,
    skip_special_tokens=True, return_token_ids=False, tokens_as_ids=False,
)  # fmt: skip


class FourCharacters:
    """A detokeniser whose every token is the next four characters of the prose."""

    def __init__(self) -> None:
        self._at = 0

    def push(self, _token_id: int) -> str:
        """Return the next token's text."""
        at, self._at = self._at, (self._at + TOKEN_CHARS) % len(PROSE)
        return PROSE[at : at + TOKEN_CHARS]

    def flush(self) -> str:
        """Return nothing: no character is ever cut."""
        return ""


class ProseTokenizer(ModelTokenizer):
    """A tokenizer whose outputs are all that prose."""

    def detokenizer(self, *_: Any, **__: Any) -> FourCharacters:
        """Return one that begins at the beginning."""
        return FourCharacters()


def patterns(number: int, rng: random.Random) -> list[str]:
    """Words, phrases and numbers, as lists of them go."""

    def word() -> str:
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 10)))

    makes: list[Callable[[], str]] = [
        lambda: rf"\b{word()}s?\b",
        lambda: rf"\b{word()}\s{{1,3}}{word()}\b",
        lambda: rf"{word()[0]}[a-z]{{2,5}}{word()}",
        lambda: rf"\b\d{{{rng.randint(3, 6)}}}[- ]?\d{{{rng.randint(3, 6)}}}\b",
    ]
    return [rng.choice(makes)() for _ in range(number)]


def sequence(tokenizer: ModelTokenizer, guard: OutputGuard | None) -> OutputSequence:
    """Return a sequence that has its first token: those that follow take the short way."""
    made = OutputSequence(
        index=0,
        prompt=Prompt((5, 6, 7), None, b"", ()),
        sampling=pb.SamplingParams(max_tokens=1_000_000),
        options=OPTIONS,
        tokenizer=tokenizer,
        on_change=lambda _: None,
        gap_timeout_seconds=60,
        **({} if guard is None else {"guard": guard}),
    )
    made.take(pb.Frame(token_ids=[5], cached=pb.CachedTokens()))
    return made


def microseconds(make: Callable[[], OutputSequence], num_tokens: int) -> float:
    """Return the CPU time that one token takes."""
    taken = make()
    frames = [pb.Frame(first_index=index, token_ids=[5]) for index in range(1, num_tokens)]
    started = time.thread_time()
    for frame in frames:
        taken.take(frame)
        taken.read()
    return 1e6 * (time.thread_time() - started) / len(frames)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--patterns", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = ProseTokenizer.load(write_model_folder(Path(folder) / "tiny"))

    def measured(rules: Rules | None) -> float:
        def make() -> OutputSequence:
            guard = OutputGuard(rules, None, lambda *_: None) if rules is not None else None
            return sequence(tokenizer, guard)

        return statistics.median(microseconds(make, asked.tokens) for _ in range(asked.repeats))

    print(f"seed {asked.seed}; no policy: {measured(None):.2f} us a token")
    for number in asked.patterns:
        for action in ("block", "redact", "flag"):
            deny = patterns(number, rng)
            rule = RuleSettings.model_validate({"name": "r", "action": action, "deny": deny})
            cost = measured(Rules([rule], {}))
            print(f"{number} patterns that {action}: {cost:.2f} us a token")


if __name__ == "__main__":
    main()
