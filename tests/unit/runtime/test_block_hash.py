"""Block hashes: what they are made of does not depend on what holds the token ids."""

import numpy as np
import pytest

from pagoda_runtime.block_hash import hash_block, hash_prompt

ROOT = bytes(range(16))
TOKEN_IDS = [0, 1, 255, 256, 65_535, 65_536, 2**31, 2**32 - 1, 7]


@pytest.mark.parametrize("held_by", [list, tuple, np.array])
def test_whatever_holds_the_token_ids_their_hashes_are_the_same(held_by: type) -> None:
    first = hash_block(ROOT, np.array(TOKEN_IDS[:4], "<u4"))
    second = hash_block(first, np.array(TOKEN_IDS[4:8], "<u4"))

    assert hash_prompt(ROOT, held_by(TOKEN_IDS), 4) == (first, second)


def test_a_partly_filled_block_has_no_hash() -> None:
    assert hash_prompt(ROOT, TOKEN_IDS[:3], 4) == ()
