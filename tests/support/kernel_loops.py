"""What the innermost loops of a compiled kernel issue, from its disassembly.

A loop that copies few bytes for each instruction is bound by issuing instructions, whatever the
memory could do. Knows SASS, NVIDIA's machine code. Knows nothing of single kernels.
"""

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass

import triton

SCHEDULERS = 4
"""Of a processor, A100 to B200: each issues one instruction of one warp in a cycle."""

LANES = 32

_LABEL = re.compile(r"\s*(\.L_\w+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]+\*/\s+(.*?);")
_BRANCH = re.compile(r"BRA.*`\((\.L_\w+)\)")
_OPCODE = re.compile(r"(?:@\S+\s+)?([\w.]+)")
"""LDGSTS.E.BYPASS.128, say, after a predicate if there is one."""


@dataclass(frozen=True)
class Loop:
    """One innermost loop.

    Attributes:
        instructions: that a warp issues in one turn, predicated ones included.
        copied_bytes: that a warp copies from global to shared memory in one turn, bulk copies not
            counted.
    """

    instructions: int
    copied_bytes: int

    @property
    def bytes_per_cycle(self) -> float:
        """Bound of what a processor copies in a cycle while all its schedulers issue this loop.

        Activations, which mostly come from the second cache, are among what it copies.
        """
        return SCHEDULERS * self.copied_bytes / self.instructions


@functools.cache  # cases share kernels, and to disassemble one takes as long as to compile it
def innermost_loops(cubin: bytes) -> tuple[Loop, ...]:
    """Every innermost loop, in the order of the code."""
    instructions, labels = _disassembled(cubin)
    spans = []
    for end, text in enumerate(instructions):
        branch = _BRANCH.search(text)
        if branch and labels.get(branch[1], end + 1) <= end:
            spans.append((labels[branch[1]], end))
    inner = [
        span
        for span in spans
        if not any(o != span and span[0] <= o[0] and o[1] <= span[1] for o in spans)
    ]
    return tuple(_loop(instructions[first : last + 1]) for first, last in sorted(set(inner)))


def _disassembled(cubin: bytes) -> tuple[list[str], dict[str, int]]:
    """(Instructions, label -> index of the instruction after it)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(triton.knobs.nvidia.nvdisasm.path), "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.match(line):
            instructions.append(instruction[1])
    assert instructions, "nvdisasm printed no instruction"
    return instructions, labels


def _loop(instructions: list[str]) -> Loop:
    names = [match[1].split(".") for text in instructions if (match := _OPCODE.match(text))]
    copied_bits = [
        next((int(part) for part in name if part in {"64", "128"}), 32)
        for name in names
        if name[0] == "LDGSTS"
    ]
    return Loop(len(instructions), LANES * sum(copied_bits) // 8)
