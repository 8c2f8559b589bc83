"""The tokens that a sequence has seen, on the host: penalties there touch those logits, no others.

Knows one sequence's tokens and penalties. Knows nothing of the vocabulary's size.
"""

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class SeenTokens:
    """Tokens of prompt and output, none twice, how often the output has each, and penalties.

    Attributes:
        end: all token ids are below it.
    """

    __slots__ = (
        "_addresses",
        "_counts",
        "_factors",
        "_num",
        "_packed_factors",
        "_places",
        "_token_ids",
        "end",
    )

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        *,
        repetition: float,
        frequency: float,
        presence: float,
    ) -> None:
        """Count the tokens known so far.

        Args:
            prompt_token_ids: >= 0.
            output_token_ids: >= 0.
            repetition: > 0, as the others rounded to float32; 1 = off.
            frequency: 0 = off.
            presence: 0 = off.

        Raises:
            ValueError: a token id is negative.
        """
        prompt = np.array(prompt_token_ids, np.int64)
        output, counts = np.unique(np.array(output_token_ids, np.int64), return_counts=True)
        self._token_ids: NDArray[np.int64] = np.union1d(prompt, output)
        self._counts = np.zeros(len(self._token_ids), np.float32)
        self._counts[np.searchsorted(self._token_ids, output)] = counts
        self._num = len(self._token_ids)
        self._places = {token_id: i for i, token_id in enumerate(self._token_ids.tolist())}
        self._factors = np.array([repetition, frequency, presence], np.float32)
        self._packed_factors = struct.pack("3f4x", *self._factors)
        self._addresses = self._token_ids.ctypes.data, self._counts.ctypes.data
        self.end = int(self._token_ids.max(initial=-1)) + 1
        if self._num and self._token_ids[0] < 0:
            raise ValueError(f"token ids: expected 0 or more, got {self._token_ids[0]}")

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """``[N]``: a view that the next `add` makes out of date."""
        return self._token_ids[: self._num]

    @property
    def counts(self) -> NDArray[np.float32]:
        """``[N]``: of each in the output; 0 = it is in the prompt alone. A view, too."""
        return self._counts[: self._num]

    @property
    def record(self) -> bytes:
        """Of `native.structures`, as the library reads it; the next `add` makes it out of date."""
        return struct.pack("QQq", *self._addresses, self._num) + self._packed_factors

    def add(self, token_id: int) -> None:
        """Count one output token."""
        place = self._places.setdefault(token_id, self._num)
        if place == self._num:
            if place == len(self._token_ids):
                room = max(64, place)
                self._token_ids = np.append(self._token_ids, np.zeros(room, np.int64))
                self._counts = np.append(self._counts, np.zeros(room, np.float32))
                self._addresses = self._token_ids.ctypes.data, self._counts.ctypes.data
            self._token_ids[place] = token_id
            self._num += 1
            self.end = max(self.end, token_id + 1)
        self._counts[place] += 1

    def penalise(self, logits: NDArray[np.float32]) -> None:
        """Change one row ``[V]``; the formula is that of the operator `penalise_logits`.

        Raises:
            IndexError: a token is beyond the vocabulary.
        """
        token_ids, counts = self.token_ids, self.counts
        repetition, frequency, presence = self._factors
        values = logits[token_ids]
        repeated = np.where(values > 0, values / repetition, values * repetition)
        logits[token_ids] = repeated - frequency * counts - presence * (counts > 0)
