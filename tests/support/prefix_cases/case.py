"""One labelled pair."""

from dataclasses import dataclass

from support.prefix_cases.requests import Asked

NOTHING = "nothing"  # the label of a prompt that missed nothing


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
