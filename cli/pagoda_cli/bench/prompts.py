"""Prompts of exact token counts, a function of the seed.

With a tokenizer file every text is counted again before it is used.
"""

import random
from collections.abc import Sequence

from pagoda_cli.bench.errors import PromptError
from pagoda_cli.bench.trace_file import MOONCAKE_BLOCK_TOKENS
from pagoda_cli.bench.vocabulary import Vocabulary
from pagoda_cli.bench.workload import PlannedRequest

_MAX_ATTEMPTS = 20


class SyntheticPrompts:
    """Makes the prompt of each planned request. Holds nothing but the shared prefix."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        seed: int,
        num_prefix_tokens: int = 0,
        send_ids: bool = False,
        block_scale: float = 1.0,
    ) -> None:
        if send_ids and not vocabulary.token_ids:
            raise PromptError(
                "--send-ids needs token ids: give --tokenizer FILE, or a server with /tokenize"
            )
        self._vocabulary = vocabulary
        self._seed = seed
        self._send_ids = send_ids
        self._block_tokens = max(1, round(MOONCAKE_BLOCK_TOKENS * block_scale))
        self._prefix = self._draw("prefix", num_prefix_tokens)

    def prompt(self, request: PlannedRequest) -> str | list[int]:
        """Return the prompt of `request`: text, or token ids if they are sent.

        Raises:
            PromptError: no text of the exact length was found.
        """
        return self._spell(str(request.index), request.num_prompt_tokens, request.hash_ids)

    def warmup_prompt(self, index: int, num_tokens: int) -> str | list[int]:
        """Return a prompt that shares nothing with those measured."""
        return self._spell(f"warmup:{index}", num_tokens, (), has_prefix=False)

    def _spell(
        self, name: str, num_tokens: int, hash_ids: Sequence[int], *, has_prefix: bool = True
    ) -> str | list[int]:
        prefix = self._prefix if has_prefix else []
        expected = len(prefix) + num_tokens
        for attempt in range(_MAX_ATTEMPTS):
            indices = prefix + self._unique(f"{name}:{attempt}", num_tokens, hash_ids)
            if self._send_ids:
                return [self._vocabulary.token_ids[i] for i in indices]
            text = "".join(self._vocabulary.words[i] for i in indices)
            count = self._vocabulary.count_tokens
            if count is None or count(text) == expected:
                return text
        raise PromptError(
            f"no text of exactly {expected} tokens in {_MAX_ATTEMPTS} attempts with this "
            "tokenizer; use --send-ids with --api completions"
        )

    def _unique(self, name: str, num_tokens: int, hash_ids: Sequence[int]) -> list[int]:
        indices: list[int] = []
        for hash_id in hash_ids:
            indices += self._draw(f"block:{hash_id}", self._block_tokens)
        # A trace's last block is partial: cut it. Fill up where blocks do not reach the length.
        del indices[num_tokens:]
        return indices + self._draw(f"request:{name}", num_tokens - len(indices))

    def _draw(self, name: str, num_tokens: int) -> list[int]:
        rng = random.Random(f"{self._seed}:{name}")
        return rng.choices(range(len(self._vocabulary.words)), k=num_tokens)
