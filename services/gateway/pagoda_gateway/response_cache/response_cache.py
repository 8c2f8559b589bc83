"""Answers of this replica's, by tenant and key; the tokens alone, so each is written afresh."""

from typing import Any

from pagoda_gateway import metrics
from pagoda_gateway.response_cache.tenant_values import TenantValues
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.replay import KeptOutput

MAX_KEEP_SECONDS = 30 * 86_400.0


class ResponseCache:
    """Within a sum of bytes; beyond it, the tenant that holds most loses its oldest."""

    def __init__(self, max_bytes: int) -> None:
        self._values = TenantValues(max_bytes=max_bytes, keep_seconds=MAX_KEEP_SECONDS)

    def get(self, tenant: str, key: str) -> list[KeptOutput] | None:
        """Return an answer's outputs; None if there is none."""
        outputs = self._values.get(tenant, key)
        metrics.CACHED_ANSWERS.labels("miss" if outputs is None else "hit").inc()
        if outputs is None:
            return None
        return [_output(output) for output in outputs]

    def put(self, key: str, generation: Generation, *, ttl_seconds: float) -> None:
        """Keep the answer of a generation that is over; one that was cut short is none."""
        outputs = [KeptOutput.of(sequence) for sequence in generation.sequences]
        if None in outputs:
            return
        values = [
            (output.token_ids, output.finish_reason, output.matched_stop_id)
            for output in outputs
            if output is not None
        ]
        self._values.put(generation.identity.tenant, key, values, keep_seconds=ttl_seconds)


def _output(value: list[Any]) -> KeptOutput:
    token_ids, reason, matched = value
    return KeptOutput(tuple(token_ids), reason, matched)
