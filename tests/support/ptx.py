"""Runs a few lines of PTX on words, so that assembly inside kernels is proven without a GPU.

Knows the instructions that Pagoda's kernels use, as the PTX ISA (section "Instructions") defines
them. Registers hold 32 bits, or 16 where a line splits a word; every register is an array.
"""

import re

import numpy as np
import torch

Words = np.ndarray
"""Any shape, uint32."""


def run_ptx(asm: str, word: Words, num_outputs: int) -> list[Words]:
    """Return the words in ``$0 .. $(num_outputs - 1)``; `word` is the operand after them.

    The operand is gone once a result was written, with which it may share a register.

    Raises:
        ValueError: an instruction that this module does not know, or an operand that is gone.
    """
    operand, results = f"${num_outputs}", [f"${i}" for i in range(num_outputs)]
    registers = {operand: word.astype(np.uint32)}
    for statement in asm.strip().removeprefix("{").removesuffix("}").split(";"):
        if statement.strip() and not statement.strip().startswith(".reg"):
            _execute(statement.strip(), registers)
        if any(result in registers for result in results):
            registers.pop(operand, None)
    return [registers[result] for result in results]


def _execute(statement: str, registers: dict[str, Words]) -> None:
    opcode, operands = statement.split(maxsplit=1)
    names = re.findall(r"\{[^}]*\}|[^,\s]+", operands)
    if opcode == "mov.b32" and names[0].startswith("{"):
        low, high = re.findall(r"\w+", names[0])
        word = _value(names[1], registers)
        registers[low], registers[high] = word & 0xFFFF, word >> 16
        return
    sources = [_value(name, registers) for name in names[1:]]
    registers[names[0]] = _result(opcode, sources).astype(np.uint32)


def _value(name: str, registers: dict[str, Words]) -> Words:
    if name in registers:
        return registers[name]
    if name.startswith("$"):
        raise ValueError(f"PTX: {name} is read after a result was written")
    return np.uint32(int(name.replace("0f", "0x"), 0))


def _result(opcode: str, sources: list[Words]) -> Words:
    match opcode:
        case "mov.b32":
            return sources[0]
        case "and.b32":
            return sources[0] & sources[1]
        case "xor.b32":
            return sources[0] ^ sources[1]
        case "shr.u32":
            return sources[0] >> sources[1]
        case "lop3.b32":
            return _lop3(*sources)
        case "prmt.b32":
            return _prmt(*sources)
        case "sub.f32":
            return (_floats(sources[0]) - _floats(sources[1])).view(np.uint32)
        case "sub.rn.f16x2":
            halves = [(word >> shift).astype(np.uint16) for word in sources for shift in (0, 16)]
            low, high, less_low, less_high = (half.view(np.float16) for half in halves)
            return _packed((low - less_low).view(np.uint16), (high - less_high).view(np.uint16))
        case "cvt.rn.bf16x2.f32":  # the first source is the upper half
            upper, lower = (torch.from_numpy(_floats(word)).bfloat16() for word in sources)
            return _packed(*(half.view(torch.int16).numpy() for half in (lower, upper)))
        case "cvt.rn.f16x2.e4m3x2":
            codes = [(sources[0] >> shift).astype(np.uint8) for shift in (0, 8)]
            values = [torch.from_numpy(code).view(torch.float8_e4m3fn).half() for code in codes]
            return _packed(*(value.view(torch.int16).numpy() for value in values))
    raise ValueError(f"PTX: expected an instruction of this module, got {opcode}")


def _lop3(a: Words, b: Words, c: Words, table: Words) -> Words:
    """Any function of three bits: bit ``4 a + 2 b + c`` of the table."""
    result = np.zeros_like(a)
    for i in range(8):
        if table >> np.uint32(i) & 1:
            bits = (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
            result = result | bits
    return result


def _prmt(a: Words, b: Words, selector: Words) -> Words:
    """Byte i is the one that nibble i of the selector names: 0-3 of a, 4-7 of b."""
    result = np.zeros_like(a)
    for i in range(4):
        choice = int(selector) >> 4 * i & 0xF
        assert choice < 8, "signs are not replicated here"
        source = a if choice < 4 else b
        byte = (source >> np.uint32(8 * (choice % 4))) & np.uint32(0xFF)
        result = result | (byte << np.uint32(8 * i))
    return result


def _floats(word: Words) -> Words:
    return np.ascontiguousarray(word).view(np.float32)


def _packed(low: Words, high: Words) -> Words:
    halves = [half.view(np.uint16).astype(np.uint32) for half in (low, high)]
    return halves[0] | halves[1] << np.uint32(16)
