// Products of bf16 by AMX: an instruction multiplies 16 rows of x, 32 numbers along K and 16 outputs.
//
// TDPBF16PS adds the products of its 16 even numbers along K in order, those of the odd ones beside them, both together,
// and that to the sum. It does so for each row alone, so a row's product does not depend on others; but the order is not
// VDPBF16PS's, so every product of bf16 is made by it, a single row's as well.
//
// Weights are widened into panels as elsewhere (product.h): 16 steps of a panel and 16 of its outputs are a tile as it is.
// x is taken by groups of 32 rows, in blocks of 32 numbers with zeros behind K, [groups][blocks][rows of the group][32]: tiles
// of it follow one another as they are read, whatever K is. Rows are computed by sixteens; what is computed of rows that are
// not there, nobody reads.

#pragma once

#include "panels.h"

#define AMX_ROWS 16
#define AMX_STEPS 16                   // pairs along K
#define AMX_WIDTH (2 * AMX_STEPS)      // numbers along K: a row of a block
#define AMX_ROW_BYTES (2 * AMX_WIDTH)
#define AMX_COLUMNS 16
#define AMX_GROUP (2 * AMX_ROWS)
#define AMX_ROOM (AMX_GROUP * AMX_ROW_BYTES)  // bytes behind x that are read with its last rows

#if TAKES_AMX

#include <sys/syscall.h>
#include <unistd.h>

// Ask the system for tile registers, which no process has unasked (Linux: Documentation/arch/x86/xstate.rst).
static inline int amx_is_permitted(void) {
    const long request_permission = 0x1023, tile_data = 18;
    return !syscall(SYS_arch_prctl, request_permission, tile_data);
}

typedef struct {
    uint8_t palette, start_row, zeros[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} AmxShapes;

// Have the calling thread's tile registers: 0 to 3 for sums, 4 and 5 for x, of so many rows, 6 and 7 for weights, whole.
// `configured`: the rows that they are for, 0 while they are free.
static inline void amx_configure(int *configured, int num_rows) {
    if (*configured == num_rows) return;
    AmxShapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) shapes.row_bytes[i] = AMX_ROW_BYTES, shapes.rows[i] = (uint8_t)(i < 6 ? num_rows : AMX_STEPS);
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
    *configured = num_rows;
}

// The system has less to keep of a thread whose registers are free.
static inline void amx_release(int *configured) {
    if (*configured) __asm__ volatile("tilerelease");
    *configured = 0;
}

// Compilers do not know what these read and write of memory.
#define AMX_LOAD(register_, from, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #register_ : : "r"(from), "r"((long)(stride)) : "memory")
#define AMX_STORE(register_, to, stride) \
    __asm__ volatile("tilestored %%tmm" #register_ ", (%0,%1,1)" : : "r"(to), "r"((long)(stride)) : "memory")
#define AMX_ZERO(register_) __asm__ volatile("tilezero %%tmm" #register_ : : )
#define AMX_MULTIPLY(sums, x, weights) __asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #x ", %%tmm" #sums : : )
#define AMX_BEGIN(register_, c, stride, adds)           \
    do {                                                \
        if (adds) AMX_LOAD(register_, c, stride);       \
        else AMX_ZERO(register_);                       \
    } while (0)
// All four tiles of sums: two side by side at c, two at d.
#define AMX_BEGIN_ALL(c, d, stride, adds)             \
    do {                                              \
        AMX_BEGIN(0, c, stride, adds);                \
        AMX_BEGIN(1, (c) + AMX_COLUMNS, stride, adds); \
        AMX_BEGIN(2, d, stride, adds);                \
        AMX_BEGIN(3, (d) + AMX_COLUMNS, stride, adds); \
    } while (0)
#define AMX_STORE_ALL(c, d, stride)             \
    do {                                        \
        AMX_STORE(0, c, stride);                \
        AMX_STORE(1, (c) + AMX_COLUMNS, stride); \
        AMX_STORE(2, d, stride);                \
        AMX_STORE(3, (d) + AMX_COLUMNS, stride); \
    } while (0)

#else
static inline int amx_is_permitted(void) { return 1; }
static inline void amx_configure(int *configured, int num_rows) { (void)configured, (void)num_rows; }
static inline void amx_release(int *configured) { (void)configured; }
#endif

// Whether products are made by these instructions.
static inline int takes_amx(int is_bf16) { return TAKES_AMX && is_bf16; }

static inline long amx_blocks(long width) { return (width + AMX_WIDTH - 1) / AMX_WIDTH; }

// From one block of x to the next, in the group of `num_rows` rows that begins with `row`.
static inline long amx_block_bytes(long row, long num_rows) {
    return (num_rows - row < AMX_GROUP ? num_rows - row : AMX_GROUP) * AMX_ROW_BYTES;
}

// Bytes from where x lies to number `column` of a row.
static inline long amx_place(long row, long num_rows, long blocks, long column) {
    const long first = row / AMX_GROUP * AMX_GROUP;
    return (first * blocks + row - first) * AMX_ROW_BYTES + column / AMX_WIDTH * amx_block_bytes(first, num_rows) + column % AMX_WIDTH * 2;
}

// Row `row` of `num_rows`, of bf16, to its places in `x`.
static inline void copy_to_blocks(const void *from, long width, char *x, long row, long num_rows) {
    const long blocks = amx_blocks(width), block_bytes = amx_block_bytes(row / AMX_GROUP * AMX_GROUP, num_rows);
    char *to = x + amx_place(row, num_rows, blocks, 0);
    for (long block = 0; block < blocks; block++, to += block_bytes) {
        const long left = width - block * AMX_WIDTH, bytes = left < AMX_WIDTH ? 2 * left : AMX_ROW_BYTES;
        if (bytes < AMX_ROW_BYTES) memset(to, 0, AMX_ROW_BYTES);
        memcpy(to, (const char *)from + block * AMX_ROW_BYTES, (size_t)bytes);
    }
}

// x as copy_to_blocks has it.
typedef struct {
    const char *x;
    long blocks;    // of a row
    long num_rows;
} AmxX;

// Where block `block` of the group of rows that begins with `row` is.
static inline const char *amx_x(const AmxX *x, long row, long block) {
    return x->x + row * x->blocks * AMX_ROW_BYTES + block * amx_block_bytes(row, x->num_rows);
}
