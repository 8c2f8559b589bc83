// How products cut a weight, dense or quantised: panels of 64 outputs, walked in steps along K.

#pragma once

#include "vectors.h"

#define PANEL 64
#define VECTORS (PANEL / LANES)
#define MAX_ROWS 6            // 6 x 4 accumulators, of 32 registers
#define CHUNK_ROWS 128        // of one task
#define NEAR_STEPS 16         // ahead of those multiplied: from the second-level cache to the first
#define K_PART_STEPS 96       // of a panel: 24 KiB, which stay in the first-level cache

// sum += x * w of two steps along K, the same two of x on all lanes: pairs of bf16.
static inline vfloat pair_sum(vfloat sum, uint32_t x, vuint w) {
#if defined(__AVX512BF16__)
    return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#else
    sum = vfma(vset(widen_bf16((uint16_t)x)), (vfloat)(w << 16), sum);
    return vfma(vset(widen_bf16((uint16_t)(x >> 16))), (vfloat)(w & 0xffff0000u), sum);
#endif
}
