"""What makes K and V of latents, however a checkpoint has it: as one tensor, or head by head.

Knows names, shapes and orders of rows. Knows nothing of what is computed with them.
"""

from pagoda_engine.checkpoints.tensor_part import Part
from pagoda_engine.models.description import LatentDescription
from pagoda_engine.models.weights.names import WeightNames
from pagoda_engine.models.weights.source import transposed


def kv_up_parts(
    names: WeightNames, prefix: str, latent: LatentDescription, num_heads: int
) -> list[Part]:
    """Return the parts of ``[H, nope + value, R]``: of each head the rows of K, then of V.

    Args:
        names: of tensors.
        prefix: of the layer's.
        latent: widths.
        num_heads: H.
    """
    rank = latent.kv_rank
    if not names.k_up:
        rows = num_heads * (latent.nope_dim + latent.value_dim)
        return [Part(f"{prefix}{names.kv_up}.weight", (rows, rank))]
    return [
        part
        for head in range(num_heads)
        for part in (
            Part(f"{prefix}{names.k_up.format(head)}.weight", (rank, latent.nope_dim), transposed),
            Part(f"{prefix}{names.v_up.format(head)}.weight", (latent.value_dim, rank)),
        )
    ]
