// A token for each row of logits: the largest, or one drawn after temperature, top-k, top-p and min-p. What
// pagoda_kernels.sampling.cpu does with numpy, a row a task, without a copy of the logits.
//
// A token's odds are e^((logit - largest) / temperature), its mass is the odds times `unit`, as an integer: sums
// of integers have no order, so a draw is the same wherever the row is cut into chunks.

#pragma once

#include "threads.h"

#define CHUNK (8 * LANES)      // tokens whose masses are added up before a draw looks closer
#define MASS_BITS 62           // all masses of a row add up to less than 2^62, as probabilities do in rows.py
#define MASS_ONE (1LL << MASS_BITS)
#define UNIFORM_BITS 53
#define DIGIT_BITS 11          // of a positive float, at a time, from the highest
#define NUM_DIGITS (1 << DIGIT_BITS)
#define FEW 48                 // so many are sorted as they are

enum { TEMPERATURE, MIN_P, TOP_N_SIGMA, XTC_THRESHOLD, TOP_K, TOP_P, TYPICAL_P, SEED, INDEX };  // see SamplingRows

typedef struct {
    const int64_t *token_ids;  // none twice; NULL: the first `count`
    const float *biases;       // added to their logits
    int64_t count;
} Biases;

typedef struct {
    const int64_t *token_ids;  // none twice
    const float *counts;       // in the output; 0: in the prompt alone
    int64_t count;
    float repetition, frequency, presence;  // see penalise_logits in sample_tokens.py
} SeenTokens;

typedef struct {
    const void *logits;         // [S, V]
    int64_t row_stride;         // elements
    int64_t num_rows;           // S
    int64_t vocab_size;         // V
    const int64_t *parameters;  // [9, S], the first four float64; NULL: every row takes its largest
    int64_t *token_ids;         // [S]; 0 where not valid
    uint8_t *is_valid;          // [S]: the largest is finite and no logit is NaN
    const Biases *biases;       // [S]; NULL: no row has any
    const SeenTokens *seen;     // [S]; NULL: no row has penalties
    int32_t is_bf16;
} SampleJob;

typedef struct {
    float *odds;     // [V, rounded up to whole chunks]: e^...
    float *largest;  // [LANES] for each chunk: of each lane
    float *kept;     // [as odds]: those that a threshold is looked for in
} SampleRoom;

// Tokens of a row: those beyond V count as minus infinity.
static inline long whole_chunks(long vocab_size) { return (vocab_size + CHUNK - 1) / CHUNK * CHUNK; }

// Bytes of scratch memory for rows of V tokens.
int64_t pagoda_sample_bytes(int64_t vocab_size) {
    const int64_t size = whole_chunks(vocab_size);
    return (3 * size + size / CHUNK * LANES) * (int64_t)sizeof(float);
}

static inline __attribute__((always_inline)) vfloat load_logits(const void *row, long i, long vocab_size, const int is_bf16) {
    if (i + LANES <= vocab_size) return vload_any(row, i, is_bf16);
    float x[LANES];
    for (long lane = 0; lane < LANES; lane++) x[lane] = i + lane < vocab_size ? load_any(row, i + lane, is_bf16) : -INFINITY;
    return vload(x);
}

// First two words of Philox4x32-10 at counter (index, 0, 0, 0) (Salmon et al., SC'11), below 2^53.
static uint64_t philox_mantissa(uint64_t seed, uint32_t index) {
    uint32_t c0 = index, c1 = 0, c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        const uint64_t product0 = (uint64_t)c0 * 0xD2511F53u, product1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0, c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1, c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    return (uint64_t)(c0 >> 5) << 26 | c1 >> 6;
}

static inline int64_t mass_of(float odds, float unit) { return (int64_t)(odds * unit); }

// Sum of the masses of LANES tokens.
static inline __attribute__((always_inline)) int64_t masses(vfloat odds, float unit) {
    odds *= unit;
#if defined(__AVX512DQ__)
    const __m512i low = _mm512_cvttps_epi64(_mm512_castps512_ps256((__m512)odds));
    const __m512i high = _mm512_cvttps_epi64(_mm512_extractf32x8_ps((__m512)odds, 1));
    return _mm512_reduce_add_epi64(_mm512_add_epi64(low, high));
#elif defined(__AVX2__)
    // The 24 bits of a float, moved to where its exponent says; by 64 and more nothing is left of them.
    const __m256i bits = (__m256i)odds, fraction = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffff));
    const __m256i number = _mm256_or_si256(fraction, _mm256_set1_epi32(0x800000));
    const __m256i left = _mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(127 + 23));
    __m256i sums = _mm256_setzero_si256();
    for (int half = 0; half < 2; half++) {
        const __m256i shift = _mm256_cvtepi32_epi64(half ? _mm256_extracti128_si256(left, 1) : _mm256_castsi256_si128(left));
        const __m256i wide = _mm256_cvtepu32_epi64(half ? _mm256_extracti128_si256(number, 1) : _mm256_castsi256_si128(number));
        const __m256i right = _mm256_sub_epi64(_mm256_setzero_si256(), shift);
        sums = _mm256_add_epi64(sums, _mm256_or_si256(_mm256_sllv_epi64(wide, shift), _mm256_srlv_epi64(wide, right)));
    }
    const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm_extract_epi64(two, 0) + _mm_extract_epi64(two, 1);
#else
    int64_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += (int64_t)odds[i];
    return sum;
#endif
}

static inline int any(vint mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= mask[lane];
    return found != 0;
#endif
}

// The largest logit, or what is not finite if a row is no distribution.
static inline __attribute__((always_inline)) float largest_logit(const void *row, long vocab_size, const int is_bf16) {
    vfloat best[4] = {vset(-INFINITY), vset(-INFINITY), vset(-INFINITY), vset(-INFINITY)};
    vint is_nan = {};
    long i = 0;
    for (; i + 4 * LANES <= vocab_size; i += 4 * LANES)
        for (int part = 0; part < 4; part++) {
            const vfloat x = vload_any(row, i + part * LANES, is_bf16);
            best[part] = vmax(x, best[part]);
            is_nan |= x != x;
        }
    for (; i < vocab_size; i += LANES) {
        const vfloat x = load_logits(row, i, vocab_size, is_bf16);
        best[0] = vmax(x, best[0]);
        is_nan |= x != x;
    }
    if (any(is_nan)) return NAN;
    return vlargest(vmax(vmax(best[0], best[1]), vmax(best[2], best[3])));
}

static inline __attribute__((always_inline)) long first_of(
    const void *row, float value, long vocab_size, const int is_bf16) {
    long i = 0;
    for (; i + 4 * LANES <= vocab_size; i += 4 * LANES) {
        vint is_equal = vload_any(row, i, is_bf16) == value;
        for (int part = 1; part < 4; part++) is_equal |= vload_any(row, i + part * LANES, is_bf16) == value;
        if (any(is_equal)) break;
    }
    while (load_any(row, i, is_bf16) != value) i++;
    return i;
}

// To `out`, of `count` floats, those that are `least` or more; returns how many.
static long keep_above(const float *values, long count, float least, float *out) {
    long num_kept = 0;
    for (long i = 0; i < count; i += LANES) {
#if defined(__AVX512F__)
        const __mmask16 is_there = count - i < LANES ? (__mmask16)((1u << (count - i)) - 1) : (__mmask16)~0u;
        const __m512 x = _mm512_maskz_loadu_ps(is_there, values + i);
        const __mmask16 is_kept = _mm512_mask_cmp_ps_mask(is_there, x, (__m512)vset(least), _CMP_GE_OQ);
        // No more than `i` are kept so far. To compress straight into memory takes Zen 4 a hundred cycles.
        if (is_kept) _mm512_mask_storeu_ps(out + num_kept, is_there, _mm512_maskz_compress_ps(is_kept, x));
        num_kept += __builtin_popcount(is_kept);
#else
        if (count - i >= LANES && !any(vload(values + i) >= vset(least))) continue;
        for (long j = i; j < count && j < i + LANES; j++)
            if (values[j] >= least) out[num_kept++] = values[j];
#endif
    }
    return num_kept;
}

// The largest value such that all that are as large or larger weigh `needed` at least; if all together do not,
// the least of them. A value weighs its mass, or 1 where `unit` is 0. Values are positive; their order is lost.
static float threshold(float *values, long count, int64_t needed, float unit) {
    int64_t sums[NUM_DIGITS];
    for (int shift = 31 - DIGIT_BITS; count > FEW; shift -= DIGIT_BITS) {
        if (shift < 0) shift = 0;
        memset(sums, 0, sizeof sums);
        for (long i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, values + i, sizeof bits);
            sums[bits >> shift & (NUM_DIGITS - 1)] += unit != 0 ? mass_of(values[i], unit) : 1;
        }
        int digit = NUM_DIGITS - 1, last = digit;
        for (; digit >= 0; digit--) {
            if (!sums[digit]) continue;
            last = digit;
            if (sums[digit] >= needed) break;
            needed -= sums[digit];
        }
        if (digit < 0) {  // all together weigh less: what the last digit weighs is needed, and more
            digit = last;
            needed = INT64_MAX;
        }
        long num_kept = 0;
        for (long i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, values + i, sizeof bits);
            values[num_kept] = values[i];
            num_kept += (bits >> shift & (NUM_DIGITS - 1)) == (uint32_t)digit;
        }
        count = num_kept;
        if (!shift) return values[0];
    }
    for (long i = 1; i < count; i++) {
        const float value = values[i];
        long j = i;
        for (; j && values[j - 1] < value; j--) values[j] = values[j - 1];
        values[j] = value;
    }
    for (long i = 0; i < count; i++) {
        needed -= unit != 0 ? mass_of(values[i], unit) : 1;
        if (needed <= 0) return values[i];
    }
    return values[count - 1];
}

// e^((logit - best) / temperature) of LANES tokens.
static inline __attribute__((always_inline)) vfloat odds_of(
    const void *row, long i, long vocab_size, float best, float temperature, const int is_bf16) {
    return vexp((load_logits(row, i, vocab_size, is_bf16) - best) / temperature);
}

// Which odds top-k and top-p keep, at least; the room then has the odds of all.
static inline __attribute__((always_inline)) float cut_row(
    const void *row, long vocab_size, float best, float temperature, int64_t top_k, int64_t top_p, float unit,
    const SampleRoom *room, const int is_bf16) {
    const long size = whole_chunks(vocab_size), num_largest = size / CHUNK * LANES;
    int64_t total = 0;
    for (long i = 0; i < size; i += CHUNK) {
        vfloat largest = {};
        for (long j = i; j < i + CHUNK; j += LANES) {
            const vfloat odds = odds_of(row, j, vocab_size, best, temperature, is_bf16);
            vstore(room->odds + j, odds);
            largest = vmax(odds, largest);
            if (!top_k) total += masses(odds, unit);
        }
        vstore(room->largest + i / CHUNK * LANES, largest);
    }
    float least = 0x1p-126f;  // what is not positive has no mass
    long num_kept;
    if (top_k) {
        // As many lanes of chunks as `top_k` hold a token that large, so what is kept is.
        if (num_largest >= 4 * top_k) {
            num_kept = keep_above(room->largest, num_largest, least, room->kept);
            if (num_kept >= top_k) least = threshold(room->kept, num_kept, top_k, 0);
        }
        num_kept = keep_above(room->odds, size, least, room->kept);
        if (num_kept > top_k) least = threshold(room->kept, num_kept, top_k, 0);
        if (top_p >= MASS_ONE) return least;
        num_kept = keep_above(room->odds, size, least, room->kept);
        for (long i = 0; i < num_kept; i++) total += mass_of(room->kept[i], unit);
    }
    int64_t needed = (int64_t)((unsigned __int128)total * (uint64_t)top_p >> MASS_BITS);
    if (needed < 1) needed = 1;
    if (!top_k) {
        // If all tokens that are less likely than this were left out, there would be enough: so are they.
        const float enough = (float)(total - needed) / (float)vocab_size / unit * 0.999f;
        num_kept = keep_above(room->odds, size, enough > least ? enough : least, room->kept);
    }
    return threshold(room->kept, num_kept, needed, unit);
}

static inline __attribute__((always_inline)) int64_t draw_token(
    const SampleJob *job, long row_index, const void *row, float best, const SampleRoom *room, const int is_bf16) {
    const long vocab_size = job->vocab_size, size = whole_chunks(vocab_size), stride = job->num_rows;
    const int64_t *parameters = job->parameters + row_index;
    double numbers[2];
    memcpy(&numbers[0], parameters + TEMPERATURE * stride, sizeof *numbers);
    memcpy(&numbers[1], parameters + MIN_P * stride, sizeof *numbers);
    const float temperature = (float)numbers[0];
    float unit = 0x1p61f, least = (float)numbers[1];
    for (long limit = 1; limit < size; limit *= 2) unit /= 2;
    const int64_t top_k = parameters[TOP_K * stride], top_p = parameters[TOP_P * stride];
    const int is_cut = (top_k > 0 && top_k < vocab_size) || top_p < MASS_ONE;
    if (is_cut) {
        const float other = cut_row(row, vocab_size, best, temperature, top_k < vocab_size ? top_k : 0, top_p, unit, room, is_bf16);
        if (other > least) least = other;
    }
    int64_t *sums = (int64_t *)room->kept, total = 0;  // of each chunk
    const vfloat lowest = vset(least);
    for (long i = 0; i < size; i += CHUNK) {
        int64_t sum = 0;
        for (long j = i; j < i + CHUNK; j += LANES) {
            const vfloat odds = is_cut ? vload(room->odds + j) : odds_of(row, j, vocab_size, best, temperature, is_bf16);
            sum += masses(vselect(odds >= lowest, odds, (vfloat){}), unit);
        }
        total += sums[i / CHUNK] = sum;
    }
    const uint64_t mantissa = philox_mantissa((uint64_t)parameters[SEED * stride], (uint32_t)parameters[INDEX * stride]);
    int64_t left = (int64_t)((unsigned __int128)mantissa * (uint64_t)total >> UNIFORM_BITS);
    long chunk = 0;
    for (; sums[chunk] <= left; chunk++) left -= sums[chunk];  // the largest logit has mass: left < total
    for (long j = chunk * CHUNK;; j += LANES) {
        const vfloat odds = is_cut ? vload(room->odds + j) : odds_of(row, j, vocab_size, best, temperature, is_bf16);
        for (int lane = 0; lane < LANES; lane++) {
            if (odds[lane] >= least) left -= mass_of(odds[lane], unit);
            if (left < 0) return j + lane;
        }
    }
}

// A float32 copy of a row with its penalties and biases; NULL if it has none.
static float *changed_row(const SampleJob *job, long index, const void *row, float *changed) {
    const SeenTokens none_seen = {0}, seen = job->seen ? job->seen[index] : none_seen;
    const Biases no_biases = {0}, biases = job->biases ? job->biases[index] : no_biases;
    const long vocab_size = job->vocab_size;
    const int is_bf16 = job->is_bf16;
    if (!seen.count && !biases.count) return NULL;
    long i = 0;
    for (; i + LANES <= vocab_size; i += LANES) vstore(changed + i, vload_any(row, i, is_bf16));
    for (; i < vocab_size; i++) changed[i] = load_any(row, i, is_bf16);
    for (i = 0; i < seen.count; i++) {
        float *logit = changed + seen.token_ids[i];
        const float repeated = *logit > 0 ? *logit / seen.repetition : *logit * seen.repetition;
        *logit = repeated - seen.frequency * seen.counts[i] - (seen.counts[i] > 0 ? seen.presence : 0);
    }
    if (biases.token_ids) {
        for (i = 0; i < biases.count; i++) changed[biases.token_ids[i]] += biases.biases[i];
        return changed;
    }
    for (i = 0; i + LANES <= biases.count; i += LANES) vstore(changed + i, vload(changed + i) + vload(biases.biases + i));
    for (; i < biases.count; i++) changed[i] += biases.biases[i];
    return changed;
}

static inline __attribute__((always_inline)) void sample_row(
    const SampleJob *job, long index, const void *row, void *scratch, const int is_bf16) {
    const long size = whole_chunks(job->vocab_size);
    const float best = largest_logit(row, job->vocab_size, is_bf16);
    job->is_valid[index] = isfinite(best);
    job->token_ids[index] = 0;
    if (!isfinite(best)) return;
    double temperature = 0;
    if (job->parameters) memcpy(&temperature, job->parameters + TEMPERATURE * job->num_rows + index, sizeof temperature);
    if (temperature > 0) {
        float *odds = scratch;
        const SampleRoom room = {odds, odds + 2 * size, odds + size};
        job->token_ids[index] = draw_token(job, index, row, best, &room, is_bf16);
    } else {
        job->token_ids[index] = first_of(row, best, job->vocab_size, is_bf16);
    }
}

typedef struct {
    const SampleJob *job;
    const Threads *threads;
} SampleTasks;

static void sample_task(const void *argument, long task, int thread) {
    const SampleTasks *tasks = argument;
    const SampleJob *job = tasks->job;
    float *scratch = scratch_of(tasks->threads, thread);
    const long size = whole_chunks(job->vocab_size);
    const void *row = at(job->logits, task * job->row_stride, job->is_bf16);
    const float *changed = changed_row(job, task, row, scratch + 2 * size + size / CHUNK * LANES);
    if (job->is_bf16 && !changed) sample_row(job, task, row, scratch, 1);
    else sample_row(job, task, changed ? changed : row, scratch, 0);
}

void pagoda_sample(Threads *threads, const SampleJob *job) {
    enter(threads);
    const SampleTasks tasks = {job, threads};
    in_parallel(threads, sample_task, &tasks, job->num_rows);
    leave(threads);
}
