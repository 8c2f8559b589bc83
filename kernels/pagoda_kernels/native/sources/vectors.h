// Sixteen floats at a time, on every instruction set: GCC's vector types, which become one register of
// AVX-512. Only products of bf16 pairs and fused multiply-add name
// instructions, because their rounding must not depend on what a compiler finds convenient.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define LANES 16

typedef float vfloat __attribute__((vector_size(64)));
typedef int32_t vint __attribute__((vector_size(64)));
typedef uint32_t vuint __attribute__((vector_size(64)));
typedef uint16_t vshort __attribute__((vector_size(64)));      // 32 of bf16
typedef uint16_t vhalf __attribute__((vector_size(32)));       // 16 of bf16

static inline vfloat vload(const float *p) { vfloat v; memcpy(&v, p, sizeof v); return v; }
static inline void vstore(float *p, vfloat v) { memcpy(p, &v, sizeof v); }
static inline vuint vload_bits(const void *p) { vuint v; memcpy(&v, p, sizeof v); return v; }
static inline void vstore_bits(void *p, vuint v) { memcpy(p, &v, sizeof v); }
// Else GCC loads it again for each use: with few rows loads, not products, would set the pace.
static inline __attribute__((always_inline)) void stay_in_register(vuint *v) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(*v));
#else
    (void)v;
#endif
}
static inline vfloat vset(float x) { return x - (vfloat){}; }

// mask: all bits of a lane set or none.
static inline vfloat vselect(vint mask, vfloat yes, vfloat no) {
    return (vfloat)(((vint)yes & mask) | ((vint)no & ~mask));
}
static inline vfloat vmax(vfloat a, vfloat b) {  // b where one of them is NaN
#if defined(__AVX512F__)
    return (vfloat)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return vselect(a > b, a, b);
#endif
}

// a * b + c, rounded once.
static inline vfloat vfma(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    union { vfloat v; __m256 half[2]; } x = {a}, y = {b}, z = {c};
    for (int i = 0; i < 2; i++) z.half[i] = _mm256_fmadd_ps(x.half[i], y.half[i], z.half[i]);
    return z.v;
#else
    return a * b + c;  // compiled with -ffp-contract=off
#endif
}

// Every lane and the one `width` further on; of all lanes in the end, always in the same order.
#define FOLD(v, combine)                                                                                \
    v = combine(v, __builtin_shuffle(v, (vint){8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7})); \
    v = combine(v, __builtin_shuffle(v, (vint){4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11})); \
    v = combine(v, __builtin_shuffle(v, (vint){2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13})); \
    v = combine(v, __builtin_shuffle(v, (vint){1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
static inline vfloat vadd(vfloat a, vfloat b) { return a + b; }
static inline float vsum(vfloat v) {
    FOLD(v, vadd)
    return v[0];
}
static inline float vlargest(vfloat v) {
    FOLD(v, vmax)
    return v[0];
}
#undef FOLD

// e^x to 2 ulp; 0 below -87.3, infinite above 88.3, NaN of NaN.
static inline vfloat vexp(vfloat x) {
    const vfloat low = vset(-87.33f), high = vset(88.37f);
#if !defined(__AVX512F__)
    const vint is_zero = x < low;
    const vint is_infinite = x > high;
    x = vselect(is_infinite, high, vmax(low, x));
#endif
    const vfloat magic = vset(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vfloat shifted = vfma(x, vset(1.44269504f), magic);
    vfloat n = shifted - magic;
    vfloat r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    vfloat y = vset(1.9875691500e-4f);
    y = vfma(y, r, vset(1.3981999507e-3f));
    y = vfma(y, r, vset(8.3334519073e-3f));
    y = vfma(y, r, vset(4.1665795894e-2f));
    y = vfma(y, r, vset(1.6666665459e-1f));
    y = vfma(y, r, vset(5.0000001201e-1f));
    y = vfma(y, r * r, r + 1.0f);
#if defined(__AVX512F__)
    // The same bits: y times a power of 2. What is beyond the bounds came to nothing, and is not taken.
    const __mmask16 is_seen = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
    const __m512 power = _mm512_maskz_scalef_ps(is_seen, (__m512)y, (__m512)n);
    const __mmask16 is_infinite = _mm512_cmp_ps_mask((__m512)x, (__m512)high, _CMP_GT_OQ);
    return (vfloat)_mm512_mask_blend_ps(is_infinite, power, (__m512)vset(INFINITY));
#else
    vint power = ((vint)shifted - (vint)magic + 127) << 23;
    y = vselect(is_infinite, vset(INFINITY), y * (vfloat)power);
    return vselect(is_zero, (vfloat){}, y);
#endif
}

static inline uint16_t round_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float widen_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

// To bf16 in the low halves of the lanes; to the nearest, ties to even.
static inline vuint vround_bits(vfloat x) {
#if defined(__AVX512BF16__)
    return (vuint)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
#endif
    vuint bits = (vuint)x;
    vuint rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    vuint is_nan = (vuint)(x != x);
    return (rounded & ~is_nan) | ((bits >> 16 | 0x40) & is_nan);
}

// Elements of bf16 or float arrays as floats. `is_bf16` is known where these are inlined.
static inline vfloat vload_any(const void *p, long i, int is_bf16) {
    if (!is_bf16) return vload((const float *)p + i);
    vhalf h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    return (vfloat)(__builtin_convertvector(h, vuint) << 16);
}
static inline void vstore_any(void *p, long i, vfloat x, int is_bf16) {
    if (!is_bf16) {
        vstore((float *)p + i, x);
        return;
    }
#if defined(__AVX512BF16__)
    vhalf h = (vhalf)_mm512_cvtneps_pbh((__m512)x);
#else
    vhalf h = __builtin_convertvector(vround_bits(x), vhalf);
#endif
    memcpy((uint16_t *)p + i, &h, sizeof h);
}
static inline float load_any(const void *p, long i, int is_bf16) {
    return is_bf16 ? widen_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
static inline void store_any(void *p, long i, float x, int is_bf16) {
    if (is_bf16) ((uint16_t *)p)[i] = round_bf16(x);
    else ((float *)p)[i] = x;
}
// As above, of an array that ends after `left` elements, one at least; beyond them there are zeros.
static inline vfloat vload_some(const void *p, long i, long left, int is_bf16) {
    if (left >= LANES) return vload_any(p, i, is_bf16);
    float x[LANES] = {0};
    for (long j = 0; j < left; j++) x[j] = load_any(p, i + j, is_bf16);
    return vload(x);
}
static inline void vstore_some(void *p, long i, long left, vfloat x, int is_bf16) {
    if (left >= LANES) {
        vstore_any(p, i, x, is_bf16);
        return;
    }
    for (long j = 0; j < left; j++) store_any(p, i + j, x[j], is_bf16);
}
// To the dtype and back.
static inline vfloat vrounded(vfloat x, int is_bf16) {
    return is_bf16 ? (vfloat)(vround_bits(x) << 16) : x;
}
static inline const void *at(const void *p, long i, int is_bf16) {
    return (const char *)p + i * (is_bf16 ? 2 : 4);
}
