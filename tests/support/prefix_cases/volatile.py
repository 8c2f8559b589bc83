"""Pairs that differ in a value early in them: a time, an identifier, a number that counts."""

import datetime
import random
import string
import uuid
from collections.abc import Callable

from support.prefix_cases.case import Case
from support.prefix_cases.requests import application, follow, with_system


def volatile(rng: random.Random, label: str, draw: Callable[[], str], sentence: str) -> Case:
    """Return two requests whose system prompts differ in a value early in them."""
    first = application(rng)
    system = first.messages[0][1]
    cut = system.find(" ", rng.choice((0, 0, 40))) + 1 if rng.random() < 0.7 else 0
    values = [draw(), draw()]
    while values[0] == values[1]:
        values[1] = draw()
    texts_of = [f"{system[:cut]}{sentence.format(value)} {system[cut:]}" for value in values]
    before = with_system(first, texts_of[0])
    return Case(label, (before,), with_system(follow(rng, before), texts_of[1]))


def moment(rng: random.Random) -> datetime.datetime:
    start = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
    return start + datetime.timedelta(seconds=rng.randrange(30 * 86_400))


def timestamp(rng: random.Random) -> Case:
    pattern = rng.choice(
        (
            "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%H:%M:%S", "%H:%M",
            "%A, %B %d, %Y", "%d %B %Y, %H:%M", "%a, %d %b %Y %H:%M:%S +0000", "%d/%m/%Y %H:%M",
            "%I:%M %p", "%A", "%Y-%m-%dT%H:%M:%S.123456+00:00", "%m/%d/%Y", "%s", "%Y%m%dT%H%M%SZ",
        )
    )  # fmt: skip
    sentence = rng.choice(("Current time: {}.", "Today is {}.", "[{}]", "It is now {}.", "{} -"))
    return volatile(rng, "timestamp", lambda: moment(rng).strftime(pattern), sentence)


def identifier(rng: random.Random) -> Case:
    def word(alphabet: str, num: int) -> str:
        return "".join(rng.choices(alphabet, k=num))

    draw = rng.choice(
        (
            lambda: str(uuid.UUID(int=rng.getrandbits(128), version=4)),
            lambda: uuid.UUID(int=rng.getrandbits(128), version=4).hex,
            lambda: word("0123456789ABCDEFGHJKMNPQRSTVWXYZ", 26),
            lambda: "req_" + word(string.ascii_letters + string.digits, 16),
            lambda: "session-" + word("0123456789abcdef", 12),
            lambda: str(rng.randrange(10**17, 10**18)),
        )
    )
    sentence = rng.choice(("Session: {}.", "request_id={}", "Trace {} follows.", "<!-- {} -->"))
    return volatile(rng, "uuid", draw, sentence)


def counter(rng: random.Random) -> Case:
    start = rng.randrange(1, 2000)
    numbers = iter(range(start, start + 1000, rng.randint(1, 5)))
    style = rng.choice(("{}", "{:,}"))
    sentence = rng.choice(
        ("Request #{}.", "Turn {} of this session.", "You have {} unread messages.", "({})")
    )
    return volatile(rng, "counter", lambda: style.format(next(numbers)), sentence)
