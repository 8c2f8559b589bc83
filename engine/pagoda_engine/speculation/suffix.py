"""Proposes what followed in the sequence itself, or else in what its tenant had generated before.

Oliaro et al., "SuffixDecoding" (2024). Good where a tenant asks for the same shape again and again:
agents, extraction, code. Knows tokens and a key.
"""

from collections.abc import Sequence

from pagoda_engine.speculation.ngram import NgramProposer
from pagoda_engine.speculation.tenant_outputs import OutputsKey, TenantOutputs


class SuffixProposer:
    """Of both the one that knows the longer suffix of the tokens; its own sequence where equal."""

    __slots__ = ("_key", "_ngrams", "_outputs", "_token_ids")

    def __init__(
        self,
        token_ids: Sequence[int],
        max_num_tokens: int,
        outputs: TenantOutputs,
        key: OutputsKey,
    ) -> None:
        """Begin to follow.

        Args:
            token_ids: of a sequence; read again at each call.
            max_num_tokens: how many they may become.
            outputs: of all tenants; looked into at each call, since they come and go.
            key: of the sequence's tenant.
        """
        self._token_ids = token_ids
        self._ngrams = NgramProposer(token_ids, max_num_tokens)
        self._outputs = outputs
        self._key = key

    def propose(self, max_tokens: int) -> Sequence[int]:
        """See `Proposer`."""
        own = self._ngrams.propose(max_tokens)
        outputs = self._outputs.get(self._key)
        if outputs is None:
            return own
        num_matched = self._ngrams.num_matched if own else 0
        found, _ = outputs.continuation(self._token_ids, max_tokens, longer_than=num_matched)
        return found or own
