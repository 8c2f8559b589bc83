// K and V in one byte for each element: code = round(clamp(x / scale)), a scale for each KV head. The codes and
// values are those of kv/quantisation.py to the bit: int8, or E4M3 of Micikevicius et al., "FP8 Formats for Deep
// Learning", 2022.

#pragma once

#include "vectors.h"

enum { CACHE_AS_ROWS = 0, CACHE_E4M3 = 1, CACHE_INT8 = 2 };

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

// What codes stand for, exactly; their bytes as signed numbers.
static inline __attribute__((always_inline)) vfloat one_byte_values(vint code, const int kind) {
    if (kind == CACHE_INT8) return __builtin_convertvector(code, vfloat);
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
        vstore_bytes(codes + i, one_byte_codes(vload_any(x, i, is_bf16) * inverse, kind));
    }
    if (i == width) return;
    vfloat rest = {};
    for (long j = i; j < width; j++) rest[j - i] = load_any(x, j, is_bf16) * inverse;
    uint8_t some[LANES];
    vstore_bytes(some, one_byte_codes(rest, kind));
    memcpy(codes + i, some, (size_t)(width - i));
}

static inline float one_byte_value(uint8_t code, const int kind) { return one_byte_values((vint){(int8_t)code}, kind)[0]; }

static const vshort E4M3_SUBNORMAL = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // n / 512 as bf16

// 2 * LANES codes as bf16, which holds all of them exactly.
static inline __attribute__((always_inline)) vshort one_byte_bf16(const uint8_t *codes, const int kind) {
    if (kind == CACHE_INT8) {  // pairs of them, each to a float, whose upper half says all
        const vint both = (vint)vwiden_halves(codes);
        const vuint even = (vuint)__builtin_convertvector((both << 24) >> 24, vfloat);
        const vuint odd = (vuint)__builtin_convertvector((both << 16) >> 24, vfloat);
        return (vshort)(even >> 16 | (odd & 0xffff0000));
    }
    typedef uint8_t vmany __attribute__((vector_size(2 * LANES)));
    vmany some;
    memcpy(&some, codes, sizeof some);
    const vshort code = __builtin_convertvector(some, vshort), magnitude = code & 0x7f;
    const vshort small = __builtin_shuffle(E4M3_SUBNORMAL, magnitude & 7), is_small = (vshort)(magnitude < 8);
    const vshort normal = (magnitude << 4) + (120 << 7);  // the bias of exponents from 7 to 127
    return (code & 0x80) << 8 | (small & is_small) | (normal & ~is_small);
}

// Elements of a row that is cached as `kind`, as two bf16 or one float for each of LANES words.
static inline __attribute__((always_inline)) vuint cached_words(
    const void *row, long word, const int is_bf16, const int kind) {
    if (kind == CACHE_AS_ROWS) return vload_bits((const uint32_t *)row + word);
    if (is_bf16) return (vuint)one_byte_bf16((const uint8_t *)row + 2 * word, kind);
    return (vuint)one_byte_values(vwiden_bytes((const uint8_t *)row + word), kind);
}
// One element, in the low half of the word if it is bf16.
static inline __attribute__((always_inline)) uint32_t cached_bits(
    const void *row, long i, const int is_bf16, const int kind) {
    float value;
    uint32_t bits;
    if (kind == CACHE_AS_ROWS && is_bf16) return ((const uint16_t *)row)[i];
    if (kind == CACHE_AS_ROWS) return ((const uint32_t *)row)[i];
    value = one_byte_value(((const uint8_t *)row)[i], kind);
    memcpy(&bits, &value, 4);
    return is_bf16 ? bits >> 16 : bits;
}

// A head of one token: [D] in the dtype of rows -> [D] codes.
static inline __attribute__((always_inline)) void to_one_byte(
    const void *x, float scale, long width, void *codes, const int is_bf16, int32_t kind) {
    if (kind == CACHE_INT8) to_one_byte_as(x, scale, width, codes, is_bf16, CACHE_INT8);
    else to_one_byte_as(x, scale, width, codes, is_bf16, CACHE_E4M3);
}
