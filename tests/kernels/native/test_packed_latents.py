"""Latents that do not fit each other; what is computed with them is in `test_decoder_layers`."""

from typing import Any

import pytest
import torch

from pagoda_kernels.native.packed_latents import LatentsShape, PackedLatents, can_pack_latents
from pagoda_kernels.native.packed_linear import PackedLinear

SHAPE = LatentsShape(kv_rank=32, nope_dim=10, rope_dim=6, value_dim=12)
NUM_HEADS, HIDDEN, Q_RANK = 3, 40, 20


@pytest.mark.usefixtures("native")
def test_widths_that_do_not_fit_are_refused() -> None:
    def latents(**changes: Any) -> PackedLatents:
        parts = {
            "down": PackedLinear(torch.ones(Q_RANK + SHAPE.width, HIDDEN)),
            "q_norm": torch.ones(Q_RANK),
            "q_up": PackedLinear(torch.ones(NUM_HEADS * 16, Q_RANK)),
            "kv_norm": torch.ones(32),
            "kv_up": torch.ones(NUM_HEADS, 22, 32),
        }
        return PackedLatents(SHAPE, **{**parts, **changes}, is_interleaved=True, eps=1e-6)

    assert len(latents().adaptable) == 2
    plain = PackedLinear(torch.ones(NUM_HEADS * 16 + SHAPE.width, HIDDEN))
    assert latents(down=plain, q_norm=None, q_up=None).adaptable == (plain,)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("down: expected 58 outputs or elements, got 86", {"down": plain}),
        (r"kv_up: expected \[22, 32\]", {"kv_up": torch.ones(NUM_HEADS, 21, 32)}),
        (r"kv_norm: expected \[32\]", {"kv_norm": torch.ones(31)}),
        ("q_up: expected 64", {"kv_up": torch.ones(4, 22, 32)}),
        ("q_norm: expected 20 outputs or elements, got 19", {"q_norm": torch.ones(19)}),
    ]
    for message, changes in refused:
        with pytest.raises(ValueError, match=message):
            latents(**changes)


@pytest.mark.usefixtures("native")
def test_odd_heads_are_packed_in_fp32_alone() -> None:
    kv_up = torch.ones(2, 9 + 4, 32)
    assert can_pack_latents(kv_up, 9)
    assert not can_pack_latents(kv_up.bfloat16(), 9)
    assert can_pack_latents(kv_up[:, :12].bfloat16(), 8)
