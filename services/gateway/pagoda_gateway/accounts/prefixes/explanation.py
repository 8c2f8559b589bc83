"""Compares a prompt with remembered ones and says why less of it was cached than should have been.

Knows token ids, hashes and texts; no request, no clock, no database.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pagoda_gateway.accounts.prefixes.alignment import SHORT_TOKENS, Alignment, align, num_equal
from pagoda_gateway.accounts.prefixes.difference import (
    Difference,
    Side,
    difference,
    first_difference,
)
from pagoda_gateway.accounts.prefixes.kinds import Kind
from pagoda_gateway.accounts.prefixes.outline import Outline, Place
from pagoda_gateway.accounts.prefixes.sketch import Tokens

NOWHERE = Place("")
_SHOWN_TOKENS = 4096  # decoded behind the first difference

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class CacheKey:
    """What besides its tokens decides whose blocks a prompt can use.

    Attributes:
        model: its name.
        kv_identity: of its weights and layout.
        adapter: on top of it; empty: none.
        root: parent hash of the first block: the salt is in it, too.
    """

    model: str
    kv_identity: bytes
    adapter: str
    root: bytes


@dataclass(frozen=True, slots=True)
class Compared:
    """One prompt: its tokens, its structure, and whose blocks it can use."""

    key: CacheKey
    token_ids: Tokens
    outline: Outline


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was in the cache for a prompt.

    Attributes:
        num_cached_tokens: as prefill counted them.
        num_ready_tokens: of its beginning, computed by requests that had their first token when
            this one came.
        num_known_tokens: the same, also by requests that had not.
        num_held_elsewhere_tokens: of its beginning, at most, that workers held which the router
            did not choose.
        block_size: tokens in a block, the least that is cached.
    """

    num_cached_tokens: int
    num_ready_tokens: int
    num_known_tokens: int
    num_held_elsewhere_tokens: int
    block_size: int


@dataclass(frozen=True, slots=True)
class PrefixMiss:
    """Why less was cached than should have been.

    Attributes:
        kind: class of the miss.
        num_lost_tokens: prompt tokens that were computed and need not have been.
        num_expected_tokens: that should have been cached.
        first_token: index of the first token that differs, or was not cached.
        place: where it differs; nowhere if the prompts are equal there.
        text: what differs in this prompt.
        earlier_text: what the remembered prompt has instead.
    """

    kind: Kind
    num_lost_tokens: int
    num_expected_tokens: int
    first_token: int
    place: Place = NOWHERE
    text: str = ""
    earlier_text: str = ""


@dataclass(frozen=True, slots=True)
class _Loss:
    """Tokens that an earlier prompt could have spared.

    `aligned` with it; None if its blocks are under another key.
    """

    relative: Compared
    num_lost_tokens: int
    num_expected_tokens: int
    aligned: Alignment | None


NEVER_SEEN = PrefixMiss("never_seen", 0, 0, 0)


def explain(
    prompt: Compared, relatives: Sequence[Compared], outcome: Outcome, decode: Decode
) -> PrefixMiss | None:
    """Return why a prompt missed; None if all was cached that could be expected.

    Args:
        prompt: that missed, perhaps.
        relatives: earlier prompts like it.
        outcome: of it.
        decode: makes text of token ids, special tokens too.
    """
    found = _not_kept(outcome)
    losses = [loss for relative in relatives if (loss := _loss(prompt, relative, outcome))]
    for loss in sorted(losses, key=lambda loss: -loss.num_lost_tokens):
        if found is not None and found.num_lost_tokens >= loss.num_lost_tokens:
            break
        if miss := _explained(prompt, loss, outcome, decode):
            found = miss
            break
    if found is not None:
        return found
    if outcome.num_cached_tokens or outcome.num_known_tokens:
        return None
    return _below_one_block(prompt, relatives, outcome, decode) or NEVER_SEEN


def explain_alone(outcome: Outcome) -> PrefixMiss | None:
    """Return why a prompt missed that no earlier one is like; as `explain` does, at once."""
    if miss := _not_kept(outcome):
        return miss
    return None if outcome.num_cached_tokens or outcome.num_known_tokens else NEVER_SEEN


def _not_kept(outcome: Outcome) -> PrefixMiss | None:
    """Explain equal blocks that were not there."""
    cached, expected = outcome.num_cached_tokens, outcome.num_known_tokens
    if expected <= cached:
        return None
    kind: Kind = "evicted"
    if outcome.num_held_elsewhere_tokens > cached:
        kind = "other_worker"
    elif outcome.num_ready_tokens <= cached:
        kind = "concurrent"
    return PrefixMiss(kind, expected - cached, expected, cached)


def _loss(prompt: Compared, relative: Compared, outcome: Outcome) -> _Loss | None:
    """Return what was lost against an earlier prompt; None if it is less than a block."""
    reached = _reached(outcome)
    num = num_equal(relative.token_ids, prompt.token_ids)
    aligned = None
    if relative.key == prompt.key:
        shorter = min(len(relative.token_ids), len(prompt.token_ids))
        if shorter - num <= outcome.block_size:
            return None  # one goes on where the other ends
        aligned = align(relative.token_ids, prompt.token_ids)
        num += aligned.num_equal_after + aligned.num_changed
    expected = _usable(num, prompt, outcome)
    if expected - reached < outcome.block_size:
        return None
    return _Loss(relative, expected - reached, expected, aligned)


def _explained(
    prompt: Compared, loss: _Loss, outcome: Outcome, decode: Decode
) -> PrefixMiss | None:
    """Return the miss that a loss is; None if the prompts have only some words in common."""
    relative, aligned = loss.relative, loss.aligned
    if aligned is None:
        kind = _key_kind(relative.key, prompt.key)
        return PrefixMiss(kind, loss.num_lost_tokens, loss.num_expected_tokens, _reached(outcome))
    found, place = _shown_difference(prompt, relative, aligned, decode)
    shorter = min(len(relative.token_ids), len(prompt.token_ids))
    if found.kind == "edited" and not _is_edit(aligned, place, shorter):
        return None
    return PrefixMiss(
        found.kind,
        loss.num_lost_tokens,
        loss.num_expected_tokens,
        aligned.first,
        place,
        text=found.later_text,
        earlier_text=found.earlier_text,
    )


def _key_kind(theirs: CacheKey, ours: CacheKey) -> Kind:
    """Tell what makes two prompts' blocks different although their tokens are equal."""
    if (theirs.model, theirs.kv_identity) != (ours.model, ours.kv_identity):
        return "other_model"
    return "other_salt" if theirs.adapter == ours.adapter else "other_adapter"


def _is_edit(aligned: Alignment, place: Place, shorter: int) -> bool:
    """Tell an edited prompt from another one: most of it is as before, or what is in front of it.

    `shorter`: tokens of the shorter prompt.
    """
    if 2 * aligned.num_equal_after >= shorter - aligned.first:
        return True
    gap = max(aligned.earlier_end, aligned.later_end) - aligned.first
    return place.is_preamble and gap <= SHORT_TOKENS


def _below_one_block(
    prompt: Compared, relatives: Sequence[Compared], outcome: Outcome, decode: Decode
) -> PrefixMiss | None:
    """Explain a beginning that prompts share, but that fills no block."""
    num = max(
        (
            num_equal(relative.token_ids, prompt.token_ids)
            for relative in relatives
            if relative.key == prompt.key
        ),
        default=0,
    )
    size = outcome.block_size
    if not size // 2 <= num <= size:
        return None
    miss = PrefixMiss("below_one_block", num, num, num)
    if num == len(prompt.token_ids):
        return replace(miss, place=_place(prompt, num - 1, decode))
    place = _place(prompt, num, decode)
    is_behind_preamble = bool(prompt.outline.parts) and not place.is_preamble
    return replace(miss, place=place) if is_behind_preamble else None


def _shown_difference(
    prompt: Compared, relative: Compared, aligned: Alignment, decode: Decode
) -> tuple[Difference, Place]:
    end = aligned.first + _SHOWN_TOKENS
    earlier = _text(decode, relative.token_ids[:end])
    later = _text(decode, prompt.token_ids[:end])
    position = first_difference(earlier, later)
    gaps = [
        len(_text(decode, one.token_ids[aligned.first : gap_end]))
        for one, gap_end in ((relative, aligned.earlier_end), (prompt, aligned.later_end))
    ]
    sides = (
        Side(earlier, relative.outline, position + gaps[0]),
        Side(later, prompt.outline, position + gaps[1]),
    )
    return (
        difference(*sides, position),
        prompt.outline.region_at(later, position).place,
    )


def _place(prompt: Compared, index: int, decode: Decode) -> Place:
    """Return where a token lies."""
    text = _text(decode, prompt.token_ids[: index + _SHOWN_TOKENS])
    position = len(_text(decode, prompt.token_ids[:index]))
    return prompt.outline.region_at(text, min(position, len(text))).place


def _text(decode: Decode, token_ids: Tokens) -> str:
    return decode(token_ids.tolist())


def _usable(num_tokens: int, prompt: Compared, outcome: Outcome) -> int:
    """Return what of so many leading tokens can be cached: whole blocks, not the last token."""
    num = min(num_tokens, len(prompt.token_ids) - 1)
    return num // outcome.block_size * outcome.block_size


def _reached(outcome: Outcome) -> int:
    return max(outcome.num_cached_tokens, outcome.num_known_tokens)
