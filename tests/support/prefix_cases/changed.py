"""Pairs that say nearly the same: in another order, with other spaces, edited."""

import json
import random
from dataclasses import replace
from typing import Any

from support.prefix_cases.case import Case
from support.prefix_cases.requests import application, follow, go_on, question, with_system

_NAMES = ("Ada Lovelace", "Grace Hopper", "Alan Turing", "Edsger Dijkstra", "Barbara Liskov")


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
