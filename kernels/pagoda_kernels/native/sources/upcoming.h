// KV that the next layer's attention will read comes into the caches while products of many rows are computed: those
// leave memory idle, and attention to few tokens of each sequence waits for nothing else.
//
// It comes in parts, one for each tile of a product that fetches (twelve_panel_product). As much comes as a shared
// third-level cache can be trusted to keep while a layer's weights go through it, and as late as possible.

#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define UPCOMING_BYTES (8 << 20)
#define UPCOMING_BLOCKS 2048
#define UPCOMING_TOKENS 8   // new ones of a sequence: attention to more of them computes for longer than it reads
#define UPCOMING_PART 8192  // bytes; a tile fetches as many in 43 steps of pairs, or in 86 of floats

typedef struct {
    _Atomic long next_part;  // that nobody has fetched
    long num_parts;
    int is_due;              // products fetch them
    const char *k_cache, *v_cache;  // of the layer
    size_t block_stride, block_bytes;
    int32_t blocks[UPCOMING_BLOCKS];  // K of each comes, then V
} Upcoming;

static inline size_t parts_of_block(size_t block_bytes) { return (block_bytes + UPCOMING_PART - 1) / UPCOMING_PART; }

// The next part that should be fetched, and its bytes; NULL: there is none.
static inline const char *next_part(Upcoming *upcoming, size_t *bytes) {
    if (atomic_load_explicit(&upcoming->next_part, memory_order_relaxed) >= upcoming->num_parts) return NULL;
    const long part = atomic_fetch_add_explicit(&upcoming->next_part, 1, memory_order_relaxed);
    if (part >= upcoming->num_parts) return NULL;
    const long each = (long)parts_of_block(upcoming->block_bytes), half = part / each;
    const size_t start = (size_t)(part % each) * UPCOMING_PART, left = upcoming->block_bytes - start;
    *bytes = left < UPCOMING_PART ? left : UPCOMING_PART;
    return (half % 2 ? upcoming->v_cache : upcoming->k_cache) + (size_t)upcoming->blocks[half / 2] * upcoming->block_stride + start;
}

// Have products fetch, if those behind the next one have not room for all parts.
static inline void fetch_if_due(Upcoming *upcoming, long room_behind) {
    if (upcoming->num_parts > room_behind) upcoming->is_due = 1;
}

static inline void forget_upcoming(Upcoming *upcoming) { upcoming->num_parts = upcoming->is_due = 0; }
