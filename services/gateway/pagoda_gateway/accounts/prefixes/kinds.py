"""The classes of misses, and what to do about each."""

from typing import Literal, get_args

Kind = Literal[
    "timestamp",
    "uuid",
    "counter",
    "reordered_tools",
    "reordered_json_keys",
    "whitespace",
    "edited",
    "below_one_block",
    "other_salt",
    "other_model",
    "other_adapter",
    "evicted",
    "concurrent",
    "other_worker",
    "never_seen",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

ADVICE: dict[str, str] = {
    "timestamp": "A date or time changes early in the prompt: put it at the end, or round it to "
    "the day.",
    "uuid": "An id is drawn for each request: leave it out of the prompt, or put it at the end.",
    "counter": "A number counts up early in the prompt: put it at the end.",
    "reordered_tools": "The same tools come in another order: sort them by name.",
    "reordered_json_keys": "The same JSON is written with its keys in another order: sort the keys "
    "(json.dumps(..., sort_keys=True)).",
    "whitespace": "Only spaces, line ends or indentation differ: make the text in one place.",
    "edited": "Text in the middle changes while what follows stays: put what stays first.",
    "below_one_block": "What the prompts share is shorter than a block, the least that is cached: "
    "nothing to gain but by a longer shared beginning.",
    "other_salt": "The same prompt came with another cache_salt: use one salt for all who may "
    "share.",
    "other_model": "The same prompt went to another model, or the model's weights or dtype "
    "changed: keep a conversation on one model.",
    "other_adapter": "The same prompt went to another adapter: keep a conversation on one.",
    "evicted": "The blocks were computed and are gone: more KV memory or a larger kvstore keeps "
    "them.",
    "concurrent": "An equal beginning was still being computed: send one request first, the others "
    "once it answers.",
    "other_worker": "The router chose a worker without the blocks because the one that has them "
    "was busy: more workers help, the prompt is fine.",
    "never_seen": "No earlier prompt is like it.",
}
