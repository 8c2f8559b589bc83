"""Random numbers that are a function of (seed, output index) alone. Knows nothing of tokens."""

UNIFORM_BITS = 53

DRAW, COIN = 0, 1
"""Streams of one seed: what draws the token, and what decides whether XTC is on at it."""

_LOW32 = 0xFFFFFFFF


def philox_mantissa(seed: int, index: int, stream: int = DRAW) -> int:
    """First two words of Philox4x32-10 at counter (index, stream, 0, 0), an integer below 2**53."""
    c0, c1, c2, c3 = index, stream, 0, 0
    k0, k1 = seed & _LOW32, seed >> 32 & _LOW32
    for _ in range(10):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = product1 >> 32 ^ c1 ^ k0, product1 & _LOW32
        c2, c3 = product0 >> 32 ^ c3 ^ k1, product0 & _LOW32
        k0, k1 = k0 + 0x9E3779B9 & _LOW32, k1 + 0xBB67AE85 & _LOW32
    return c0 >> 5 << 26 | c1 >> 6
