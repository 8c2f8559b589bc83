"""Pairs whose text gives no reason: what was cached, where, and for whom decides."""

import random
from dataclasses import replace

from support.prefix_cases.case import NOTHING, Case
from support.prefix_cases.prompts import prompt_of
from support.prefix_cases.requests import (
    Asked,
    application,
    ask_anew,
    follow,
    question,
    texts,
    with_system,
)
from support.prefix_cases.volatile import moment


def below_one_block(rng: random.Random) -> Case:
    words = " ".join(rng.choice(texts()).split()[: rng.randint(3, 6)])
    if rng.random() < 0.5:
        asked = Asked((("user", words),))
        num = len(prompt_of(asked, 16)[0].token_ids)
        size = 16 if num <= 16 else 32 if num <= 32 else 64
        return Case("below_one_block", (asked,), asked, block_size=size)
    first = Asked((("system", words), ("user", question(rng))))
    other = ask_anew(rng, first)
    while other.messages[1][1].split()[0] == first.messages[1][1].split()[0]:
        other = ask_anew(rng, first)
    pair = [prompt_of(asked, 16)[0].token_ids for asked in (first, other)]
    same = next(i for i, (a, b) in enumerate(zip(*pair, strict=False)) if a != b)
    size = 16 if same < 16 else 32 if same < 32 else 64
    return Case("below_one_block", (first,), other, block_size=size)


def other_salt(rng: random.Random) -> Case:
    first = application(rng)
    return Case("other_salt", (first,), replace(follow(rng, first), salt="another"))


def other_model(rng: random.Random) -> Case:
    first = application(rng)
    return Case("other_model", (first,), replace(follow(rng, first), model="another"))


def evicted(rng: random.Random) -> Case:
    first = application(rng)
    share = rng.choice((0.0, 0.0, 0.2))
    return Case("evicted", (first,), follow(rng, first), kept_share=share)


def concurrent(rng: random.Random) -> Case:
    first = application(rng)
    return Case("concurrent", (first,), follow(rng, first), is_computing=True)


def other_worker(rng: random.Random) -> Case:
    first = application(rng)
    return Case(
        "other_worker", (first,), follow(rng, first), kept_share=0.0, is_held_elsewhere=True
    )


def never_seen(rng: random.Random) -> Case:
    system, *others = rng.sample(texts(), 4)
    now = Asked((("system", system), ("user", question(rng))))
    before = Asked((("system", " ".join(others)), ("user", others[0])))
    if now.messages[1][1] in str(before):
        return never_seen(rng)
    return Case("never_seen", (before,), now)


def nothing(rng: random.Random) -> Case:
    """Return a request that has all that it can have, some of them near misses."""
    way = rng.randrange(5)
    first = application(rng, tools=False if way == 0 else None)  # tools come behind the system's
    if way == 0:  # what changes is at the end
        system = f"{first.messages[0][1]} It is {moment(rng):%H:%M:%S}."
        later = f"{first.messages[0][1]} It is {moment(rng):%H:%M:%S}."
        return Case(
            NOTHING, (with_system(first, system),), with_system(ask_anew(rng, first), later)
        )
    if way == 1:  # other documents, the same short instruction behind them
        documents = rng.sample(texts(), 6)
        before, now = (
            replace(first, messages=(first.messages[0], ("user", "\n".join([*some, "Sum up."]))))
            for some in (documents[:3], documents[3:])
        )
        return Case(NOTHING, (before,), now)
    if way == 2:  # another conversation, whose answers begin alike
        start = "Of course, here is what the document says about that: "
        turns = [
            replace(
                ask_anew(rng, first),
                messages=(
                    first.messages[0],
                    ("user", question(rng)),
                    ("assistant", start + rng.choice(texts())),
                    ("user", question(rng)),
                ),
            )
            for _ in range(2)
        ]
        return Case(NOTHING, (turns[0],), turns[1])
    return Case(NOTHING, (first,), follow(rng, first))
