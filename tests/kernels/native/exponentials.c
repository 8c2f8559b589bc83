// How near the exponentials, and what is made of them, are to what they stand for.

#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>

#include "pagoda.c"

static void check(int is_right, const char *what, float x, float y) {
    if (is_right) return;
    fprintf(stderr, "%s of %.9g is not %.9g\n", what, x, y);
    exit(1);
}

static float bits(uint32_t word) {
    float x;
    memcpy(&x, &word, 4);
    return x;
}

static float off(float y, double truth) { return (float)fabs(y / truth - 1); }

int main(void) {
    const float two_ulp = ldexpf(1, -22), ends[] = {-87.2f, 0.0f};
    for (long i = 0; i <= 1000000; i++) {
        const float x = ends[0] * (float)i / 1e6f, y = vexp(vset(x))[0], rough = vexp_for_bf16(vset(x))[0];
        check(off(y, exp(x)) < two_ulp, "vexp", x, y);
        check(off(rough, exp(x)) < ldexpf(1, x > -9.0f ? -20 : -17), "vexp_for_bf16", x, rough);
        check(off(vexp(vset(-x))[0], exp(-x)) < two_ulp, "vexp", -x, y);
    }
#if defined(__AVX512F__)
    for (long i = 0; i <= 1000000; i++) {
        const float x = -126.0f * (float)i / 1e6f, y = vexp2_for_bf16(vset(x))[0];
        check(off(y, exp2(x)) < ldexpf(1, -21), "vexp2_for_bf16", x, y);
    }
#endif
    const float none[] = {-INFINITY, -1e30f, -87.5f}, nan = bits(0x7fc00000);
    for (int i = 0; i < 3; i++) {
        check(vexp(vset(none[i]))[0] == 0, "vexp", none[i], vexp(vset(none[i]))[0]);
        check(vexp_for_bf16(vset(none[i]))[0] == 0, "vexp_for_bf16", none[i], vexp_for_bf16(vset(none[i]))[0]);
    }
    check(vexp(vset(0))[0] == 1 && vexp_for_bf16(vset(0))[0] == 1, "both", 0, vexp_for_bf16(vset(0))[0]);
    check(isinf(vexp(vset(89))[0]), "vexp", 89, vexp(vset(89))[0]);
    check(isnan(vexp(vset(nan))[0]) && isnan(vexp_for_bf16(vset(nan))[0]), "both", nan, 0);
    for (uint32_t word = 0; word < 1 << 16; word++) {  // a gate is rounded before
        const float x = bits(word << 16), silu_of_x = vrounded(silu(vset(x), 1), 1)[0], divided = vrounded(x / (1.0f + vexp(-vset(x))), 1)[0];
        const int is_same = silu_of_x == divided || (isnan(silu_of_x) && isnan(divided));
        check(is_same || (x < -87.3f && fabsf(silu_of_x - divided) < 1e-36f), "silu", x, silu_of_x);
    }
    puts("done");
    return 0;
}
