"""Whose blocks a prompt could have had: rules that no case of the real system reaches yet."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pagoda_gateway.accounts.prefixes.explanation import CacheKey, Compared, Outcome, explain
from pagoda_gateway.accounts.prefixes.outline import Outline

SIZE = 16
KEY = CacheKey("m", b"i" * 16, "", b"r" * 16)
COLD = Outcome(0, 0, 0, 0, SIZE)
PROMPT = Compared(KEY, np.arange(100, dtype=np.uint32), Outline())


def decode(token_ids: Sequence[int]) -> str:
    return "".join(chr(0x4E00 + token_id) for token_id in token_ids)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"root": b"s" * 16}, "other_salt"),
        ({"root": b"s" * 16, "adapter": "poet"}, "other_adapter"),
        ({"root": b"s" * 16, "adapter": "poet", "model": "n"}, "other_model"),
        ({"root": b"s" * 16, "kv_identity": b"j" * 16}, "other_model"),  # new weights, old name
    ],
)
def test_equal_tokens_under_another_key(changed: dict[str, object], kind: str) -> None:
    relative = replace(PROMPT, key=replace(KEY, **changed))  # type: ignore[arg-type]
    miss = explain(PROMPT, [relative], COLD, decode)
    assert miss is not None
    assert (miss.kind, miss.num_lost_tokens) == (kind, 96)
    warm = replace(COLD, num_cached_tokens=96)
    assert explain(PROMPT, [relative], warm, decode) is None


def test_the_last_token_is_never_expected() -> None:
    prompt = replace(PROMPT, token_ids=PROMPT.token_ids[:96])
    other = replace(prompt, key=replace(KEY, root=b"s" * 16))
    miss = explain(prompt, [other], COLD, decode)
    assert miss is not None
    assert miss.num_expected_tokens == 80


def test_the_costliest_reason_is_named() -> None:
    salted = Compared(replace(KEY, root=b"s" * 16), PROMPT.token_ids[:40].copy(), PROMPT.outline)
    edited_ids = PROMPT.token_ids.copy()
    edited_ids[3] = 5000
    edited = replace(PROMPT, token_ids=edited_ids)
    for relatives in ([salted, edited], [edited, salted]):
        miss = explain(PROMPT, relatives, COLD, decode)
        assert miss is not None
        assert (miss.kind, miss.first_token, miss.num_lost_tokens) == ("edited", 3, 96)
        assert (miss.text, miss.earlier_text) == (decode([3]), decode([5000]))
    evicted = replace(COLD, num_ready_tokens=96, num_known_tokens=96)
    miss = explain(PROMPT, [edited], evicted, decode)
    assert miss is not None
    assert miss.kind == "evicted"
