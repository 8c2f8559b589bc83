"""Elements of one byte to floats of two, four at a time, in PTX.

Left to itself Triton widens single elements, and does so after it gave a tile the layout of a
product's operand, where it has to collect single bytes. Assembly takes a word of four, and as it
claims a side effect the tile is widened first and takes that layout as words of two. Not so on
Blackwell, whose pipeliner would refuse to move it; there operands go through memory anyway.
An operand may share a register with a result, so it is read before a result is written.
Knows encodings. Knows nothing of caches or weights. The interpreter, which knows no assembly, works
on single elements.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from pagoda_kernels.triton import launch

IS_INTERPRETED: tl.constexpr = tl.constexpr(launch.IS_INTERPRETED)

E4M3_TO_FP16: tl.constexpr = tl.constexpr("""{
.reg .b16 low, high;
mov.b32 {low, high}, $2;
cvt.rn.f16x2.e4m3x2 $0, low;
cvt.rn.f16x2.e4m3x2 $1, high;
}""")
"""For GPUs that convert e4m3 themselves."""

E4M3_BITS_TO_FP16: tl.constexpr = tl.constexpr("""{
.reg .b32 lower, upper, magnitude;
prmt.b32 lower, $2, 0, 0x1404;
prmt.b32 upper, $2, 0, 0x3424;
shr.u32 magnitude, lower, 1;
and.b32 magnitude, magnitude, 0x3F803F80;
lop3.b32 $0, lower, 0x80008000, magnitude, 0xEA;
shr.u32 magnitude, upper, 1;
and.b32 magnitude, magnitude, 0x3F803F80;
lop3.b32 $1, upper, 0x80008000, magnitude, 0xEA;
}""")
"""For the others: the same bits as fp16, whose exponent bias is 8 larger."""

INT8_TO_FP16: tl.constexpr = tl.constexpr("""{
.reg .b32 offset, bias;
xor.b32 offset, $2, 0x80808080;
mov.b32 bias, 0x64806480;
prmt.b32 $0, offset, bias, 0x7170;
prmt.b32 $1, offset, bias, 0x7372;
sub.rn.f16x2 $0, $0, bias;
sub.rn.f16x2 $1, $1, bias;
}""")
"""The bits 0x6400 | u are 1024 + u in fp16, of which u - 128 is left when 1152 is taken."""

INT8_TO_BF16: tl.constexpr = tl.constexpr("""{
.reg .b32 offset, bits<4>;
.reg .f32 value<4>;
xor.b32 offset, $2, 0x80808080;
prmt.b32 bits0, offset, 0x4B000000, 0x7540;
prmt.b32 bits1, offset, 0x4B000000, 0x7541;
prmt.b32 bits2, offset, 0x4B000000, 0x7542;
prmt.b32 bits3, offset, 0x4B000000, 0x7543;
mov.b32 value0, bits0;
mov.b32 value1, bits1;
mov.b32 value2, bits2;
mov.b32 value3, bits3;
sub.f32 value0, value0, 0f4B000080;
sub.f32 value1, value1, 0f4B000080;
sub.f32 value2, value2, 0f4B000080;
sub.f32 value3, value3, 0f4B000080;
cvt.rn.bf16x2.f32 $0, value1, value0;
cvt.rn.bf16x2.f32 $1, value3, value2;
}""")
"""As INT8_TO_FP16 by way of fp32, where the bits 0x4B000000 | u are 2^23 + u: bf16 has too few."""


@triton.jit
def _to_fp16(x, asm: tl.constexpr):
    is_pure: tl.constexpr = tl.target_info.cuda_capability_geq(10)
    return tl.inline_asm_elementwise(asm, "=r,=r,r", [x], dtype=tl.float16, is_pure=is_pure, pack=4)


@triton.jit
def e4m3_to_fp16(x):
    """Exact value of float8_e4m3fn, on GPUs that convert it themselves."""
    if IS_INTERPRETED:
        value = x.to(tl.float16)
    else:
        value = _to_fp16(x.to(tl.uint8, bitcast=True), E4M3_TO_FP16)
    return value


@triton.jit
def e4m3_bits_to_fp16(bits):
    """Value / 256 of the bits of float8_e4m3fn, uint8, exactly; no NaN."""
    if IS_INTERPRETED:
        wide = bits.to(tl.uint16)
        value = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    else:
        value = _to_fp16(bits, E4M3_BITS_TO_FP16)
    return value


@triton.jit
def int8_to_float(x, dtype: tl.constexpr):
    """Exact value of int8 as `dtype`, bf16, fp16 or fp32."""
    if IS_INTERPRETED:
        value = x.to(dtype)
    elif dtype == tl.bfloat16:
        value = tl.inline_asm_elementwise(
            INT8_TO_BF16,
            "=r,=r,r",
            [x],
            dtype=tl.bfloat16,
            is_pure=tl.target_info.cuda_capability_geq(10),
            pack=4,
        )
    else:
        value = _to_fp16(x, INT8_TO_FP16).to(dtype)
    return value
