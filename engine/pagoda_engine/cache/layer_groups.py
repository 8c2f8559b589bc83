"""How layers that do not all look back as far share one pool: groups of as many layers each.

Knows numbers of layers and their windows. Knows nothing of tensors or of who owns a block.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers of a model in groups of one kind, so that parts of blocks have equal sizes.

    Group 0 has the layers that attend to all tokens; the others have as many layers each (where
    layers are not alike: as take as many bytes), which attend to a window. The last one may have
    fewer, and leave room unused. A block has a part for
    each group: its first one as long as the block is, the others only as long as a query to come
    may see its tokens.

    Attributes:
        places: for each layer its group, and its place in that group.
        group_size: layers of each windowed group; of all groups, where layers are alike.
        window: latest tokens that any layer with a window attends to.
    """

    places: tuple[tuple[int, int], ...]
    group_size: int
    window: int

    @property
    def num_windowed(self) -> int:
        """Groups beside group 0, and so the parts that a block loses behind the window."""
        return max(group for group, _ in self.places)

    def most_blocks(self, block_size: int, max_num_batched_tokens: int) -> int:
        """Return the blocks with windowed parts that one sequence needs at a time, at the most.

        Those of a prefix that it shares, and those that it computes.
        """
        shared = 1 + -(-self.window // block_size)
        return shared + most_windowed(self.window, block_size, max_num_batched_tokens)

    def longest_table(self, num_blocks: int, block_size: int, max_num_batched_tokens: int) -> int:
        """Return the most blocks that one sequence can have in a pool.

        Args:
            num_blocks: of the pool, as many as there are if all have all parts.
            block_size: tokens of a block.
            max_num_batched_tokens: of one step.
        """
        most = self.most_blocks(block_size, max_num_batched_tokens)
        num_places = num_blocks * (1 + self.num_windowed)
        return max(num_blocks, num_places - self.num_windowed * most)

    def blocks_of_search(
        self,
        num_prompt_tokens: int,
        num_tokens: int,
        width: int,
        *,
        block_size: int,
        max_num_batched_tokens: int,
    ) -> int:
        """Return the blocks whose room a beam search needs at a time, at the most.

        Its prompt's full blocks are there once, what follows once for each beam; windowed parts as
        far as the next token sees, or as the prompt is computed.

        Args:
            num_prompt_tokens: which all beams share.
            num_tokens: of the longest one whose KV is written, prompt included.
            width: beams.
            block_size: tokens of a block.
            max_num_batched_tokens: of one step.
        """
        num_prompt = -(-num_prompt_tokens // block_size)
        num_computed = min(num_prompt, self.most_blocks(block_size, max_num_batched_tokens))
        num_shared = num_prompt_tokens // block_size
        num_own = -(-num_tokens // block_size) - num_shared  # of each beam
        num_seen = 1 + -(-self.window // block_size)
        num_windowed = width * min(num_own, num_seen)
        num_windowed += min(num_shared, max(0, num_seen - num_own))
        num_places = max(
            num_prompt + self.num_windowed * num_computed,
            num_shared + width * num_own + self.num_windowed * num_windowed,
        )
        return -(-num_places // (1 + self.num_windowed))

    @property
    def name(self) -> str:
        """Return what tells one order of layers from another."""
        kinds = "".join("w" if group else "f" for group, _ in self.places)
        return f"{self.num_windowed}x{self.group_size}w{self.window}{kinds}"


def can_be_in_parts(device_type: str) -> bool:
    """Whether blocks of a cache there may be in parts.

    On a GPU layers are pushed while others are computed, and digests are taken where blocks lie:
    both know whole blocks alone.
    """
    return device_type == "cpu"


def most_windowed(window: int, block_size: int, max_num_batched_tokens: int) -> int:
    """Return the blocks of what the first token of a prompt's next chunk sees, and of two steps.

    Of two, since one may be in flight.
    """
    return 1 + -(-(window + 2 * max_num_batched_tokens) // block_size)


def layer_groups(
    windows: Sequence[int | None], widths: Sequence[int] | None = None
) -> LayerGroups | None:
    """Return the groups of layers with these windows; None where parts would gain nothing.

    That is where all layers have one or none has, and where those that have one are smaller,
    together, than those that have none.

    Args:
        windows: of each layer; None: it attends to all tokens.
        widths: what each layer caches of a token; None: as much as any other. Those with windows
            that differ among themselves have no groups.
    """
    widths = widths or [1] * len(windows)
    windowed = [i for i, window in enumerate(windows) if window is not None]
    each = {widths[i] for i in windowed}
    full = sum(widths) - sum(widths[i] for i in windowed)
    if not full or len(each) != 1:
        return None
    size = _layers_of_part(full, each.pop(), len(windowed))
    if len(windowed) < size:
        return None
    nth = {layer: place for place, layer in enumerate(windowed)}
    whole = itertools.count()
    places = tuple(
        (1 + nth[i] // size, nth[i] % size) if i in nth else (0, next(whole))
        for i in range(len(windows))
    )
    return LayerGroups(places, size, max(w for w in windows if w is not None))


def _layers_of_part(full: int, each: int, count: int) -> int:
    """Return of how many of `count` layers parts are made, so that a whole block is smallest.

    Parts are as large as all layers without windows, which take `full`; or larger, by what is
    missing to one more layer that takes `each`.
    """

    def block(num_layers: int) -> int:
        return max(full, num_layers * each) * (1 + -(-count // num_layers))

    fewer = max(1, full // each)
    return min((fewer, max(1, -(-full // each))), key=block)
