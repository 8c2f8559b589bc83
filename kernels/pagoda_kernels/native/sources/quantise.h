// From dense weights to codes and scales, once at load: what quantised.h multiplies with. A group of 4 bits
// gets the scale with the least squared error of a few; 8 bits the one that its largest weight asks for.

#pragma once

#include "product.h"

#define NUM_FACTORS 8  // scales that are tried, as parts of what the largest weight asks for
static const float FACTORS[NUM_FACTORS] = {1.0f, 0.82f, 0.86f, 0.9f, 0.94f, 0.98f, 1.04f, 1.08f};

typedef struct {
    const void *weight;      // [N, K]
    const uint16_t *levels;  // [16] bf16, ascending, the first the farthest from 0; NULL: codes are int8
    int8_t *codes;           // [N, K]
    uint16_t *scales;        // [N, groups] bf16
    int64_t num_rows;
    int64_t width;
    int32_t is_bf16;
} QuantiseJob;

// The levels nearest to `values / scale`; returns the sum of squared errors.
static inline float nearest_levels(
    const vfloat *values, float scale, const float *levels, const float *middles, int8_t *codes) {
    const vfloat inverse = vset(1.0f / scale);
    vfloat errors = {};
    for (int v = 0; v < GROUP / LANES; v++) {
        const vfloat x = values[v] * inverse;
        vfloat level = vset(levels[0]);
        vint index = {};
        for (int i = 0; i < NUM_LEVELS - 1; i++) {
            const vint is_above = x > vset(middles[i]);
            index -= is_above;
            if (LANES < NUM_LEVELS) level = vselect(is_above, vset(levels[i + 1]), level);
        }
#if LANES == NUM_LEVELS
        level = __builtin_shuffle(vload(levels), index);
#endif
        const vfloat off = level * scale - values[v];
        errors = vfma(off, off, errors);
        vstore_bytes(codes + v * LANES, (vuint)index);
    }
    return vsum(errors);
}

static uint16_t four_bits(const vfloat *values, float largest, const float *levels, int8_t *codes) {
    float middles[NUM_LEVELS - 1], least = INFINITY;
    uint16_t best = 0;
    for (int i = 0; i < NUM_LEVELS - 1; i++) middles[i] = (levels[i] + levels[i + 1]) / 2;
    memset(codes, 0, GROUP);
    for (int i = 0; i < NUM_FACTORS; i++) {
        int8_t found[GROUP];
        const uint16_t scale = round_bf16(largest / levels[0] * FACTORS[i]);
        if (widen_bf16(scale) == 0) continue;  // too small for bf16: the weights are 0
        const float error = nearest_levels(values, widen_bf16(scale), levels, middles, found);
        if (error < least) {
            least = error, best = scale;
            memcpy(codes, found, GROUP);
        }
    }
    return best;
}

static uint16_t eight_bits(const vfloat *values, float largest, int8_t *codes) {
    const uint16_t scale = round_bf16(fabsf(largest) / 127);
    const vfloat magic = vset(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    memset(codes, 0, GROUP);
    for (int v = 0; scale && v < GROUP / LANES; v++) {
        const vfloat code = vmax(values[v] * (1.0f / widen_bf16(scale)), vset(-127.0f));
        vstore_bytes(codes + v * LANES, (vuint)((vint)(-vmax(-code, vset(-127.0f)) + magic) - (vint)magic));
    }
    return scale;
}

static void quantise_task(const void *argument, long row, int thread) {
    const QuantiseJob *job = argument;
    const long groups = num_groups(job->width);
    float levels[NUM_LEVELS] = {0};
    (void)thread;
    if (job->levels)
        for (int i = 0; i < NUM_LEVELS; i++) levels[i] = widen_bf16(job->levels[i]);
    for (long g = 0; g < groups; g++) {
        const long from = g * GROUP, size = job->width - from < GROUP ? job->width - from : GROUP;
        float padded[GROUP] = {0}, largest = 0;
        int8_t codes[GROUP] = {0};
        int is_finite = 1;
        for (long i = 0; i < size; i++) padded[i] = load_any(job->weight, row * job->width + from + i, job->is_bf16);
        for (int i = 0; i < GROUP; i++) {
            is_finite &= isfinite(padded[i]);
            if (fabsf(padded[i]) > fabsf(largest)) largest = padded[i];
        }
        vfloat values[GROUP / LANES];
        for (int v = 0; v < GROUP / LANES; v++) values[v] = vload(padded + v * LANES);
        uint16_t scale = 0x7fc0;  // NaN
        if (is_finite) scale = job->levels ? four_bits(values, largest, levels, codes) : eight_bits(values, largest, codes);
        job->scales[row * groups + g] = scale;
        memcpy(job->codes + row * job->width + from, codes, (size_t)size);
    }
}

void pagoda_quantise(Threads *threads, const QuantiseJob *job) {
    enter(threads);
    in_parallel(threads, quantise_task, job, job->num_rows);
    leave(threads);
}
