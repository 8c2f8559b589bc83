"""How many bits the weights of projections have: one of a few formats, chosen at the start.

Weights are quantised as they are read, from a dense checkpoint; activations and KV are not. What is
no projection stays dense: embeddings (a step reads one row of a token), norms, biases, and routers
of experts, which are small and decide much. The output projection has 8 bits in every format: it is
read once a step like any other, but its errors are those of the logits themselves.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pagoda_engine.errors import InvalidConfigError
from pagoda_kernels.native.quantised_weight import Bits


@dataclass(frozen=True, slots=True)
class Quantization:
    """One format.

    Attributes:
        name: as the setting calls it.
        projections: bits of a weight in attention, feed-forward and experts; None: dense.
        output: bits of a weight of the output projection; None: dense.
    """

    name: str
    projections: Bits | None
    output: Bits | None

    def fingerprint(self, of_files: bytes) -> bytes:
        """Return the 16 bytes of a model of these files: another format makes other KV."""
        if self.projections is None and self.output is None:
            return of_files
        said = b"pagoda.quantization.v1" + self.name.encode()
        return hashlib.blake2b(of_files + said, digest_size=16).digest()

    def __str__(self) -> str:
        """Name and bits, for logs."""
        if self.projections is None:
            return self.name
        return f"{self.name} (projections {self.projections} bits, output {self.output} bits)"


NONE = Quantization("none", None, None)
QUANTIZATIONS: Mapping[str, Quantization] = {
    each.name: each for each in (NONE, Quantization("int8", 8, 8), Quantization("int4", 4, 8))
}


def resolve_quantization(name: str) -> Quantization:
    """Return the format of that name.

    Raises:
        InvalidConfigError: there is none.
    """
    if name not in QUANTIZATIONS:
        raise InvalidConfigError("quantization", name, "one of " + ", ".join(QUANTIZATIONS))
    return QUANTIZATIONS[name]
