"""Assembly inside kernels, which the interpreter does not run, gives the values it stands for."""

import numpy as np
import pytest
import torch
from support.ptx import run_ptx

from pagoda_kernels.matmul.triton import int4_matmul
from pagoda_kernels.triton import one_byte_words


def random_words() -> np.ndarray:
    """Every byte in every place of a word, its neighbours at random: [1024] uint32."""
    codes = torch.randint(256, (1024, 4), dtype=torch.uint8)
    for place in range(4):
        codes[256 * place : 256 * (place + 1), place] = torch.arange(256)
    return codes.numpy().view(np.uint32)[:, 0]


def halves_of(words: list[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
    """The floats of two bytes in words, [N, 2 len(words)], in the order of elements."""
    return torch.from_numpy(np.stack(words, axis=1)).view(dtype)


def bytes_of(words: np.ndarray) -> torch.Tensor:
    """[N, 4] uint8, in the order of elements."""
    return torch.from_numpy(words.copy()).view(torch.uint8).view(-1, 4)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal values; NaN, which e4m3 has two of, equals anything."""
    equal = (found.float() == expected.float()) | expected.isnan()
    return bool(equal.all())


@pytest.mark.parametrize(
    ("asm", "dtype", "factor"),
    [
        (one_byte_words.E4M3_TO_FP16, torch.float16, 1.0),
        (one_byte_words.E4M3_BITS_TO_FP16, torch.float16, 1 / 256),
    ],
)
def test_e4m3(asm, dtype: torch.dtype, factor: float) -> None:
    words = random_words()
    found = halves_of(run_ptx(asm.value, words, 2), dtype)
    values = bytes_of(words).view(torch.float8_e4m3fn).float()
    assert same(found, values * factor)


@pytest.mark.parametrize(
    ("asm", "dtype"),
    [
        (one_byte_words.INT8_TO_FP16, torch.float16),
        (one_byte_words.INT8_TO_BF16, torch.bfloat16),
    ],
)
def test_int8(asm, dtype: torch.dtype) -> None:
    words = random_words()
    found = halves_of(run_ptx(asm.value, words, 2), dtype)
    assert same(found, bytes_of(words).view(torch.int8).float())


@pytest.mark.parametrize(
    ("asm", "dtype", "bias"),
    [
        (int4_matmul.TO_FP16, torch.float16, 1024),
        (int4_matmul.TO_BF16, torch.bfloat16, 128),
    ],
)
def test_nibbles(asm, dtype: torch.dtype, bias: int) -> None:
    words = random_words()
    shorts = torch.from_numpy(words.copy()).view(torch.int16).view(-1, 2).int()
    for i, word in enumerate(run_ptx(asm.value, words, 4)):
        assert same(halves_of([word], dtype), (shorts >> 4 * i & 0xF).float() + bias)


def test_refuses_an_operand_that_a_result_may_have_overwritten() -> None:
    with pytest.raises(ValueError, match=r"\$2 is read after a result was written"):
        run_ptx("{ shr.u32 $0, $2, 4; shr.u32 $1, $2, 8; }", np.zeros(1, np.uint32), 2)


def test_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"got add\.u32"):
        run_ptx("{ add.u32 $0, $1, 1; }", np.zeros(1, np.uint32), 1)
