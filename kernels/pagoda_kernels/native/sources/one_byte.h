// K and V in one byte for each element: code = round(clamp(x / scale)), a scale for each KV head. The codes and
// values are those of kv/quantisation.py to the bit: int8, or E4M3 of Micikevicius et al., "FP8 Formats for Deep
// Learning", 2022.

#pragma once

#include "vectors.h"

enum { CACHE_AS_ROWS = 0, CACHE_E4M3 = 1, CACHE_INT8 = 2 };

typedef uint8_t vbytes __attribute__((vector_size(16)));

static inline long cache_item(int32_t kind, int is_bf16) { return kind ? 1 : is_bf16 ? 2 : 4; }

// Codes in the low bytes of the lanes, to the nearest, ties to even; larger magnitudes saturate.
static inline __attribute__((always_inline)) vuint one_byte_codes(vfloat x, const int kind) {
    const vfloat largest = vset(kind == CACHE_INT8 ? 127.0f : 448.0f);
    x = vmax(x, -largest);
    x = vselect(x > largest, largest, x);
    if (kind == CACHE_INT8) return (vuint)(x + 12582912.0f) & 0xff;  // 1.5 * 2^23: no room for a fraction
    const vuint bits = (vuint)x, magnitude = bits & 0x7fffffff;
    // Three bits of the fraction are kept, the bias of exponents goes from 127 to 7.
    const vuint normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
    // Below 2^-6 codes are multiples of 2^-9, the distance of neighbours at 2^14.
    const vuint subnormal = (vuint)((vfloat)magnitude + 16384.0f) - 0x46800000;
    const vint is_small = (vint)magnitude < 0x3c800000;
    const vuint code = (subnormal & (vuint)is_small) | (normal & ~(vuint)is_small);
    return code | (bits >> 24 & 0x80);
}

// What codes stand for, exactly.
static inline __attribute__((always_inline)) vfloat one_byte_values(vbytes codes, const int kind) {
    const vint code = __builtin_convertvector(codes, vint);
    if (kind == CACHE_INT8) return __builtin_convertvector((code << 24) >> 24, vfloat);
    const vfloat value = (vfloat)(((code & 0x7f) << 20) + (120 << 23));
    const vint is_small = (code & 0x7f) < 8;  // no leading one: taken for one, it is 2^-6 too much
    const vfloat magnitude = vselect(is_small, value + value - 0.015625f, value);
    return (vfloat)((vint)magnitude | (code & 0x80) << 24);
}

static inline __attribute__((always_inline)) void to_one_byte_as(
    const void *x, float scale, long width, uint8_t *codes, const int is_bf16, const int kind) {
    const float inverse = 1.0f / scale;
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vbytes some = __builtin_convertvector(one_byte_codes(vload_any(x, i, is_bf16) * inverse, kind), vbytes);
        memcpy(codes + i, &some, sizeof some);
    }
    if (i == width) return;
    vfloat rest = {};
    for (long j = i; j < width; j++) rest[j - i] = load_any(x, j, is_bf16) * inverse;
    vbytes some = __builtin_convertvector(one_byte_codes(rest, kind), vbytes);
    memcpy(codes + i, &some, (size_t)(width - i));
}

static inline __attribute__((always_inline)) void from_one_byte_as(
    const uint8_t *codes, float scale, long width, void *x, const int is_bf16, const int kind) {
    long i = 0;
    for (; i + LANES <= width; i += LANES) {
        vbytes some;
        memcpy(&some, codes + i, sizeof some);
        vstore_any(x, i, one_byte_values(some, kind) * scale, is_bf16);
    }
    if (i == width) return;
    vbytes some = {};
    memcpy(&some, codes + i, (size_t)(width - i));
    const vfloat rest = one_byte_values(some, kind) * scale;
    for (long j = i; j < width; j++) store_any(x, j, rest[j - i], is_bf16);
}

// A head of one token: [D] in the dtype of rows -> [D] codes, and back.
static inline __attribute__((always_inline)) void to_one_byte(
    const void *x, float scale, long width, void *codes, const int is_bf16, int32_t kind) {
    if (kind == CACHE_INT8) to_one_byte_as(x, scale, width, codes, is_bf16, CACHE_INT8);
    else to_one_byte_as(x, scale, width, codes, is_bf16, CACHE_E4M3);
}
static inline __attribute__((always_inline)) void from_one_byte(
    const void *codes, float scale, long width, void *x, const int is_bf16, int32_t kind) {
    if (kind == CACHE_INT8) from_one_byte_as(codes, scale, width, x, is_bf16, CACHE_INT8);
    else from_one_byte_as(codes, scale, width, x, is_bf16, CACHE_E4M3);
}
