// As many floats at a time as a register holds, on every instruction set: GCC's vector types. Instructions are
// named where rounding must not depend on what a compiler finds convenient, as in products of bf16 pairs and fused
// multiply-add, and where compilers find worse ones.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define LANE_LIST 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#define HALF_LANE_LIST LANE_LIST, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
#elif defined(__AVX2__)
#define LANES 8
#define LANE_LIST 0, 1, 2, 3, 4, 5, 6, 7
#define HALF_LANE_LIST LANE_LIST, 8, 9, 10, 11, 12, 13, 14, 15
#else
#define LANES 4
#define LANE_LIST 0, 1, 2, 3
#define HALF_LANE_LIST LANE_LIST, 4, 5, 6, 7
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_REGISTERS 28  // of 32, for sums and weights of a product
#else
#define TILE_REGISTERS 14  // of 16
#endif

// Of what is long next to a call of it: GCC would make one for each place where it is called, and who installs waits for that.
#define OUT_OF_LINE __attribute__((noinline))

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
typedef uint32_t vuint __attribute__((vector_size(4 * LANES)));
typedef uint16_t vshort __attribute__((vector_size(4 * LANES)));      // 2 * LANES of bf16
typedef uint16_t vhalf __attribute__((vector_size(2 * LANES)));       // LANES of bf16
typedef uint8_t vbytes __attribute__((vector_size(LANES)));
typedef uint8_t vmany __attribute__((vector_size(4 * LANES)));

static const vint LANE_NUMBERS = {LANE_LIST};

static inline vfloat vload(const float *p) { vfloat v; memcpy(&v, p, sizeof v); return v; }
static inline void vstore(float *p, vfloat v) { memcpy(p, &v, sizeof v); }
static inline vuint vload_bits(const void *p) { vuint v; memcpy(&v, p, sizeof v); return v; }
static inline void vstore_bits(void *p, vuint v) { memcpy(p, &v, sizeof v); }
// So many whole numbers of two bytes or of one, and back: GCC takes them through general registers.
static inline vuint vwiden_halves(const void *p) {
#if defined(__AVX512F__)
    __m256i halves;
    memcpy(&halves, p, sizeof halves);
    return (vuint)_mm512_cvtepu16_epi32(halves);
#elif defined(__AVX2__)
    return (vuint)_mm256_cvtepu16_epi32(_mm_loadu_si128(p));
#else
    vhalf halves;
    memcpy(&halves, p, sizeof halves);
    return __builtin_convertvector(halves, vuint);
#endif
}
static inline vint vwiden_bytes(const void *p) {  // signed
#if defined(__AVX512F__)
    return (vint)_mm512_cvtepi8_epi32(_mm_loadu_si128(p));
#elif defined(__AVX2__)
    return (vint)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
#else
    typedef int8_t vsigned __attribute__((vector_size(LANES)));
    vsigned bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vint);
#endif
}
static inline void vstore_bytes(void *p, vuint v) {  // below 256, or signed ones below 128
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
    const __m128i mask = _mm_set1_epi32(0xff);
    const __m128i halves = _mm_packus_epi32(_mm_and_si128(low, mask), _mm_and_si128(high, mask));
    _mm_storel_epi64(p, _mm_packus_epi16(halves, halves));
#else
    const vbytes bytes = __builtin_convertvector(v, vbytes);
    memcpy(p, &bytes, sizeof bytes);
#endif
}
// Bytes: of each 16 those that the low halves of `index` name, whose high halves are 0.
static inline vuint vlook_up(vuint bytes, vuint index) {
#if defined(__AVX512BW__)
    return (vuint)_mm512_shuffle_epi8((__m512i)bytes, (__m512i)index);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vuint)_mm256_shuffle_epi8((__m256i)bytes, (__m256i)index);
#else
    return (vuint)__builtin_shuffle((vmany)bytes, (vmany)index);
#endif
}
// Words of two bytes, of each 16 of `low` and `high` the first 8, and the last.
static inline vuint vjoin_first(vuint low, vuint high) {
#if defined(__AVX512BW__)
    return (vuint)_mm512_unpacklo_epi8((__m512i)low, (__m512i)high);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vuint)_mm256_unpacklo_epi8((__m256i)low, (__m256i)high);
#else
    return (vuint)__builtin_shuffle((vmany)low, (vmany)high, (vmany){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
#endif
}
static inline vuint vjoin_last(vuint low, vuint high) {
#if defined(__AVX512BW__)
    return (vuint)_mm512_unpackhi_epi8((__m512i)low, (__m512i)high);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    return (vuint)_mm256_unpackhi_epi8((__m256i)low, (__m256i)high);
#else
    return (vuint)__builtin_shuffle((vmany)low, (vmany)high, (vmany){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
#endif
}
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
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (vfloat)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vfloat)(((vint)yes & mask) | ((vint)no & ~mask));
#endif
}
static inline vfloat vmax(vfloat a, vfloat b) {  // b where one of them is NaN
#if defined(__AVX512F__)
    return (vfloat)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vfloat)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vselect(a > b, a, b);
#endif
}

// Whether a lane of a is above that of b.
static inline int vany_above(vfloat a, vfloat b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)(a > b)) != 0;
#else
    const vint is_above = a > b;
    return (is_above[0] | is_above[1] | is_above[2] | is_above[3]) != 0;
#endif
}

// a * b + c, rounded once; by SSE, which has no such instruction, twice.
static inline vfloat vfma(vfloat a, vfloat b, vfloat c) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vfloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;  // compiled with -ffp-contract=off
#endif
}

// sum += a * b. As an instruction that adds in place: of the others GCC takes those that move sums about, and has no
// register left for some of them.
static inline __attribute__((always_inline)) void vadd_product(vfloat *sum, vfloat a, vfloat b) {
#if defined(__FMA__) && !defined(__AVX512F__)
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
#else
    *sum = vfma(a, b, *sum);
#endif
}

// Every lane and the one `width` further on; of all lanes in the end, always in the same order.
#define FOLD_BY(width, v, combine) v = combine(v, __builtin_shuffle(v, (vint){LANE_LIST} ^ width));
#define FOLD(v, combine)                       \
    if (LANES > 8) FOLD_BY(8, v, combine)      \
    if (LANES > 4) FOLD_BY(4, v, combine)      \
    FOLD_BY(2, v, combine)                     \
    FOLD_BY(1, v, combine)
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
#undef FOLD_BY

#define LOG2_E 1.44269504f

// e^x to 2 ulp; 0 below -87.3, infinite above 88.3, NaN of NaN.
static inline vfloat vexp(vfloat x) {
    const vfloat low = vset(-87.33f), high = vset(88.37f);
#if !defined(__AVX512F__)
    const vint is_zero = x < low;
    const vint is_infinite = x > high;
    x = vselect(is_infinite, high, vmax(low, x));
#endif
    const vfloat magic = vset(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vfloat shifted = vfma(x, vset(LOG2_E), magic);
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

#if defined(__AVX512F__)
// 2^x of x up to 0, for what is rounded to bf16: to 2^-21; 0 below -126, NaN of NaN.
static inline vfloat vexp2_for_bf16(vfloat x) {
    const vfloat r = (vfloat)_mm512_reduce_ps((__m512)x, 1);  // x - floor(x)
    vfloat y = vset(1.86713133e-3f);
    y = vfma(y, r, vset(9.01702791e-3f));
    y = vfma(y, r, vset(5.57999164e-2f));
    y = vfma(y, r, vset(2.40164444e-1f));
    y = vfma(y, r, vset(6.93151295e-1f));
    y = vfma(y, r, vset(1.0f));
    const __mmask16 is_seen = _mm512_cmp_ps_mask((__m512)x, (__m512)vset(-126.0f), _CMP_NLT_UQ);
    return (vfloat)_mm512_maskz_scalef_ps(is_seen, (__m512)y, (__m512)x);  // by 2^floor(x)
}
#endif

// e^x of x up to 0, for what is rounded to bf16: to 2^-20 down to -9, to 2^-17 where it is next to nothing; 0 below
// -87.3, NaN of NaN. The same as vexp where there is no AVX-512.
static inline vfloat vexp_for_bf16(vfloat x) {
#if defined(__AVX512F__)
    return vexp2_for_bf16(x * LOG2_E);
#else
    return vexp(x);
#endif
}

// x / y for what is rounded to bf16: to 2^-26; of y beyond 2^126, whose reciprocal is no normal number, it may be x * 0.
// Divided where there is no AVX-512.
static inline vfloat vdivided_for_bf16(vfloat x, vfloat y) {
#if defined(__AVX512F__)
    const vfloat guess = (vfloat)_mm512_rcp14_ps((__m512)y), error = vfma(-guess, y, vset(1.0f));
    // Of a guess of nothing there is no error: 0 times infinity is none.
    const __mmask16 is_finite = _mm512_cmp_ps_mask((__m512)guess, (__m512){}, _CMP_NEQ_UQ);
    return x * (vfloat)_mm512_mask_fmadd_ps((__m512)guess, is_finite, (__m512)error, (__m512)guess);
#else
    return x / y;
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
    return (vfloat)(vwiden_halves((const uint16_t *)p + i) << 16);
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
// The last elements of a row that is no whole vectors.
static OUT_OF_LINE vfloat vload_rest(const void *p, long i, long left, int is_bf16) {
    float x[LANES] = {0};
    for (long j = 0; j < left; j++) x[j] = load_any(p, i + j, is_bf16);
    return vload(x);
}
static OUT_OF_LINE void vstore_rest(void *p, long i, long left, vfloat x, int is_bf16) {
    for (long j = 0; j < left; j++) store_any(p, i + j, x[j], is_bf16);
}
// As above, of an array that ends after `left` elements, one at least; beyond them there are zeros.
static inline vfloat vload_some(const void *p, long i, long left, int is_bf16) {
    return left >= LANES ? vload_any(p, i, is_bf16) : vload_rest(p, i, left, is_bf16);
}
static inline void vstore_some(void *p, long i, long left, vfloat x, int is_bf16) {
    if (left >= LANES) vstore_any(p, i, x, is_bf16);
    else vstore_rest(p, i, left, x, is_bf16);
}
// To the dtype and back.
static inline vfloat vrounded(vfloat x, int is_bf16) {
    return is_bf16 ? (vfloat)(vround_bits(x) << 16) : x;
}
static inline const void *at(const void *p, long i, int is_bf16) {
    return (const char *)p + i * (is_bf16 ? 2 : 4);
}
