"""Labelled pairs of prompts: what the second one misses of the first one, and why.

The texts are this repository's own documents, the tools are those of `tests/schemas`, the prompts
are made by the demo model's template and tokenizer. What is cached is what an engine would have.
"""

import datetime
import json
import random
import re
import string
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pagoda_gateway.accounts.prefixes.explanation import (
    CacheKey,
    Compared,
    Outcome,
    PrefixMiss,
    explain,
)
from pagoda_gateway.accounts.prefixes.memory import Arrival, PrefixMemory
from pagoda_gateway.accounts.prefixes.outline import Outline, Part
from pagoda_gateway.text.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime import block_hash
from support.demo import DEMO_MODEL

ROOT = Path(__file__).parents[2]
TENANT = "t"
NOTHING = "nothing"  # the label of a prompt that missed nothing
_NAMES = ("Ada Lovelace", "Grace Hopper", "Alan Turing", "Edsger Dijkstra", "Barbara Liskov")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Asked:
    """A request: its messages, its tools, and what else decides whose blocks it can use."""

    messages: tuple[tuple[str, str], ...]
    tools: tuple[dict[str, Any], ...] = ()
    salt: str = ""
    model: str = "m"


@dataclass(frozen=True)
class Case:
    """Requests that came before, in their order, one that comes now, and its label.

    Attributes:
        label: a class of misses, or `NOTHING`.
        before: they are computed and cached when `now` comes, unless the label says otherwise.
        now: the request to explain.
        kept_share: of their blocks, from the beginning, that are still cached.
        is_computing: they had no token yet when `now` came.
        is_held_elsewhere: a worker that was not chosen has all their blocks.
    """

    label: str
    before: tuple[Asked, ...]
    now: Asked
    block_size: int = 16
    kept_share: float = 1.0
    is_computing: bool = False
    is_held_elsewhere: bool = False


@dataclass
class Score:
    """How often each label was found, missed, or given to others."""

    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def recall(self, label: str) -> float:
        return self.pairs[label, label] / max(1, self._sum(0, label))

    def precision(self, label: str) -> float:
        return self.pairs[label, label] / max(1, self._sum(1, label))

    def count(self, label: str) -> int:
        return self._sum(0, label)

    def _sum(self, side: int, label: str) -> int:
        return sum(num for pair, num in self.pairs.items() if pair[side] == label)

    def table(self) -> str:
        lines = [f"{'class':20} {'cases':>6} {'precision':>9} {'recall':>7}  found instead"]
        for label in sorted({pair[0] for pair in self.pairs}):
            wrong = {b: n for (a, b), n in self.pairs.items() if a == label != b}
            lines.append(
                f"{label:20} {self.count(label):6} {self.precision(label):9.3f} "
                f"{self.recall(label):7.3f}  {wrong or ''}"
            )
        return "\n".join(lines)


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


@cache
def template() -> tuple[ChatTemplate, ModelTokenizer]:
    tokenizer = ModelTokenizer.load(DEMO_MODEL)
    loaded = ChatTemplate.load(DEMO_MODEL, tokenizer.special_tokens)
    assert loaded is not None
    return loaded, tokenizer


class World:
    """One tenant's requests, one after the other, on workers that keep what they compute."""

    def __init__(self, block_size: int) -> None:
        self.memory = PrefixMemory(max_bytes=1 << 26, max_tenant_bytes=1 << 24)
        self._size = block_size
        self._cached: defaultdict[bytes, set[bytes]] = defaultdict(set)

    def ask(self, asked: Asked, *, is_computing: bool = False) -> None:
        """Serve a request."""
        prompt, hashes = prompt_of(asked, self._size)
        arrival = self._arrive(prompt, hashes, is_computing=is_computing)
        if not is_computing:
            self.memory.settle(TENANT, arrival, hashes, is_computed=True)
            self._cached[prompt.key.root].update(hashes)

    def keep(self, asked: Asked, share: float) -> None:
        """Evict a request's blocks but for this share of them, at the beginning."""
        prompt, hashes = prompt_of(asked, self._size)
        self._cached[prompt.key.root] -= set(hashes[int(share * len(hashes)) :])

    def explain(self, asked: Asked, *, is_held_elsewhere: bool = False) -> PrefixMiss | None:
        """Serve a request and return why it missed."""
        prompt, hashes = prompt_of(asked, self._size)
        arrival = self._arrive(prompt, hashes, is_computing=True)
        usable = (len(prompt.token_ids) - 1) // self._size
        held = self._cached[prompt.key.root]
        run = next((i for i, h in enumerate(hashes) if h not in held), len(hashes))
        known = self._size * min(arrival.num_known_blocks, usable)
        return explain(
            prompt,
            self.memory.relatives(TENANT, arrival),
            Outcome(
                num_cached_tokens=self._size * min(run, usable),
                num_ready_tokens=self._size * min(arrival.num_ready_blocks, usable),
                num_known_tokens=known,
                num_held_elsewhere_tokens=known if is_held_elsewhere else 0,
                block_size=self._size,
            ),
            lambda ids: template()[1].decode(ids, skip_special_tokens=False),
        )

    def _arrive(
        self, prompt: Compared, hashes: tuple[bytes, ...], *, is_computing: bool
    ) -> Arrival:
        return self.memory.arrive(
            TENANT,
            prompt.key,
            tuple(prompt.token_ids.tolist()),
            hashes,
            prompt.outline,
            lambda: not is_computing,
        )


def found_in(case: Case, background: tuple[Asked, ...] = ()) -> str:
    """Return the class that is found for a case, after requests that have nothing to do with it."""
    world = World(case.block_size)
    for asked in background:
        world.ask(asked)
    for asked in case.before:
        world.ask(asked, is_computing=case.is_computing)
        if case.kept_share < 1:
            world.keep(asked, case.kept_share)
    miss = world.explain(case.now, is_held_elsewhere=case.is_held_elsewhere)
    return NOTHING if miss is None else miss.kind


def prompt_of(asked: Asked, block_size: int) -> tuple[Compared, tuple[bytes, ...]]:
    """Return what a request is compared as, and its blocks' hashes."""
    chat_template, tokenizer = template()
    text = chat_template.render(
        [{"role": role, "content": content} for role, content in asked.messages],
        tools=list(asked.tools) or None,
    )
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    identity = block_hash.kv_identity(fingerprint=asked.model.encode(), layout="l")
    root = block_hash.cache_root(kv_identity=identity, cache_salt=asked.salt.encode())
    outline = Outline.of(
        (Part.of(role, content) for role, content in asked.messages),
        (tool["function"]["name"] for tool in asked.tools),
    )
    key = CacheKey(asked.model, identity, "", root)
    compared = Compared(key, np.asarray(token_ids, np.uint32), outline)
    return compared, block_hash.hash_prompt(root, token_ids, block_size)


# --- requests


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


def reordered_tools(rng: random.Random) -> Case:
    first = application(rng, tools=True)
    tools = list(first.tools)
    while tools == list(first.tools):
        rng.shuffle(tools)
    return Case("reordered_tools", (first,), replace(follow(rng, first), tools=tuple(tools)))


def reordered_keys(rng: random.Random) -> Case:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            keys = list(value)
            rng.shuffle(keys)
            return {key: shuffled(value[key]) for key in keys}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    def record() -> dict[str, Any]:
        return {
            key: rng.choice((rng.randrange(100), rng.choice(_NAMES), [1, 2], {"a": 1, "b": "x"}))
            for key in rng.sample(("user", "plan", "region", "limits", "flags", "team", "tags"), 5)
        }

    if rng.random() < 0.4:  # in the tools' schemas
        first = application(rng, tools=True)
        now, tools = follow(rng, first), first.tools
        while json.dumps(tools) == json.dumps(first.tools):
            tools = tuple(shuffled(tool) for tool in first.tools)
        return Case("reordered_json_keys", (first,), replace(now, tools=tools))
    first = application(rng)
    data, other = {"context": record(), "more": [record()]}, None
    while other is None or json.dumps(other) == json.dumps(data):
        other = shuffled(data)
    indent = rng.choice((None, 2))
    systems = [
        f"Context: {json.dumps(value, indent=indent)}\n{first.messages[0][1]}"
        for value in (data, other)
    ]
    before = with_system(first, systems[0])
    return Case("reordered_json_keys", (before,), with_system(follow(rng, before), systems[1]))


def whitespace(rng: random.Random) -> Case:
    first = application(rng)
    system = first.messages[0][1]
    if rng.random() < 0.25:
        data = {"a": [1, 2, 3], "region": "eu", "plan": "gold"}
        styles = rng.sample((json.dumps(data), json.dumps(data, indent=2),
                             json.dumps(data, separators=(",", ":"))), 2)  # fmt: skip
        systems = [f"{style} {system}" for style in styles]
    else:
        at = system.index(" ", rng.choice((0, 30, 60)))
        other = rng.choice(("  ", "\n", "\n\n", "\t", " \n", "\r\n", "    "))
        systems = [system, system[:at] + other + system[at + 1 :]]
        rng.shuffle(systems)
    before = with_system(first, systems[0])
    return Case("whitespace", (before,), with_system(follow(rng, before), systems[1]))


def edited(rng: random.Random) -> Case:
    first = application(rng)
    system = first.messages[0][1]
    at = system.index(" ", rng.choice((0, 30, 60))) + 1
    way = rng.randrange(5)
    if way == 0:  # a name
        names = rng.sample(_NAMES, 2)
        systems = [f"You work for {name}. {system}" for name in names]
    elif way == 1:  # one more sentence
        systems = [system, f"{system[:at]}{question(rng)}. {system[at:]}"]
    elif way == 2:  # a measured value
        values = rng.sample(range(100, 1000), 2)
        systems = [f"Budget: {value / 100:.2f} credits. {system}" for value in values]
    elif way == 3:  # another word
        end = system.index(" ", at)
        systems = [system, system[:at] + rng.choice(("never", "seldom", "purple")) + system[end:]]
    else:  # the oldest turn is dropped
        long = go_on(rng, go_on(rng, go_on(rng, first)))
        kept = (long.messages[0], *long.messages[3:])
        return Case("edited", (long,), replace(long, messages=kept))
    before = with_system(first, systems[0])
    return Case("edited", (before,), with_system(follow(rng, before), systems[1]))


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


MAKERS: tuple[Callable[[random.Random], Case], ...] = (
    timestamp, identifier, counter, reordered_tools, reordered_keys, whitespace, edited,
    below_one_block, other_salt, other_model, evicted, concurrent, other_worker, never_seen,
    nothing,
)  # fmt: skip


def scored(seed: int, num_of_each: int) -> Score:
    """Return how well the classes of so many cases each are found, among other applications."""
    rng = random.Random(seed)
    score = Score()
    for make in MAKERS:
        for _ in range(num_of_each):
            case = make(rng)
            if case.block_size == 16 and make is not below_one_block:
                case = replace(case, block_size=rng.choice((16, 32)))
            background = () if make is never_seen else tuple(
                Asked((("user", question(rng)),)) for _ in range(3)
            )  # fmt: skip
            score.pairs[case.label, found_in(case, background)] += 1
    return score
