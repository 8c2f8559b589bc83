"""A grammar over the tiny vocabulary: a graph of states, whose edges are tokens.

Where one edge leaves a state its token is forced. `AutomatonMask` allows every token there, so that
only an engine that obeys `forced` stays inside the grammar; a token outside is a KeyError.
"""

import random
from collections.abc import Mapping, Sequence

from pagoda_engine import TokenMaskError
from pagoda_engine.token_mask import TokenBits, token_bits
from support.tiny_checkpoints import EOS_TOKEN_ID, VOCAB_SIZE

Edges = Mapping[int, Mapping[int, int]]
"""State -> token -> next state. Output begins in state 0; a state without edges is a dead end."""


class AutomatonMask:
    def __init__(self, edges: Edges, *, max_run: int = 50) -> None:
        self.edges = edges
        self.max_run = max_run

    def bitmask(self, output_token_ids: Sequence[int]) -> TokenBits:
        choices = self._choices(output_token_ids)
        if not choices:
            raise TokenMaskError("nothing leaves this state")
        return token_bits(range(VOCAB_SIZE) if len(choices) == 1 else choices, VOCAB_SIZE)

    def forced(self, output_token_ids: Sequence[int]) -> list[int]:
        run: list[int] = []
        state = self._state(output_token_ids)
        while len(choices := self.edges[state]) == 1 and len(run) < self.max_run:
            ((token_id, state),) = choices.items()
            run.append(token_id)
        return run

    def ahead(self, output_token_ids: Sequence[int], proposed: Sequence[int]) -> list[TokenBits]:
        self.bitmask(output_token_ids)
        output = [*output_token_ids]
        masks = [token_bits(self._choices(output), VOCAB_SIZE)]
        for token_id in proposed:
            if token_id not in self._choices(output):
                break
            output.append(token_id)
            if not self._choices(output):
                break
            masks.append(token_bits(self._choices(output), VOCAB_SIZE))
        return masks

    def _choices(self, output_token_ids: Sequence[int]) -> list[int]:
        return [*self.edges[self._state(output_token_ids)]]

    def _state(self, output_token_ids: Sequence[int]) -> int:
        state = 0
        for token_id in output_token_ids:
            state = self.edges[state][token_id]
        return state


class OneByOne(AutomatonMask):
    """The same grammar for who asks before each token; forces nothing."""

    def bitmask(self, output_token_ids: Sequence[int]) -> TokenBits:
        choices = self._choices(output_token_ids)
        if not choices:
            raise TokenMaskError("nothing leaves this state")
        return token_bits(choices, VOCAB_SIZE)

    def forced(self, output_token_ids: Sequence[int]) -> list[int]:
        return []


def random_edges(rng: random.Random, *, num_states: int = 24) -> Edges:
    """Return a grammar with runs of forced tokens; now and then the only way is EOS, or none."""
    edges: dict[int, dict[int, int]] = {}
    for state in range(num_states):
        num_choices = rng.choice([1, 1, 1, 2, 5, 40])
        tokens = rng.sample(range(EOS_TOKEN_ID), num_choices)
        if state and rng.random() < 0.1:
            tokens = rng.choice([[EOS_TOKEN_ID], [EOS_TOKEN_ID, *tokens], []])
        edges[state] = {token_id: rng.randrange(num_states) for token_id in tokens}
    return edges
