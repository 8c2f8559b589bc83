"""Faults, by process id or file from outside: kill, pause, terminate, damage."""

import asyncio
import random
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from chaos.system import Member, System, send

BYTES_PER_FLIP = 160_000  # about every second block of the demo model in float32
MIN_SEGMENT_BYTES = 4096  # what is smaller is no segment: a lock, an id


class Action(StrEnum):
    """What is done to a process."""

    KILL = "kill"  # SIGKILL; the supervisor starts it again
    PAUSE = "pause"  # SIGSTOP, some seconds, SIGCONT: accepts and never answers
    TERM = "term"  # SIGTERM: drains, ends, is started again
    DAMAGE = "damage"  # bytes of its NVMe segments flipped, then SIGKILL
    NONE = "none"  # the control


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    action: Action
    role: str

    def __str__(self) -> str:
        return f"{self.action} {self.role}".strip()


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done: who was replaced by it, and what a person should know."""

    replaced: tuple[Member, ...]
    detail: str


async def inject(
    fault: Fault, system: System, rng: random.Random, pause_seconds: tuple[float, float]
) -> Done:
    """Do it to a random process of the role; a paused one goes on before this returns."""
    if fault.action is Action.NONE:
        return Done((), "")
    victim = rng.choice(system.of_role(fault.role))
    detail = f"{fault.action} {victim.name} (pid {victim.pid})"
    match fault.action:
        case Action.KILL:
            send(victim, signal.SIGKILL)
        case Action.TERM:
            send(victim, signal.SIGTERM)
        case Action.PAUSE:
            seconds = rng.uniform(*pause_seconds)
            send(victim, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                send(victim, signal.SIGCONT)
            return Done((), f"{detail} for {seconds:.1f} s")
        case Action.DAMAGE:
            num_bytes, num_files = flip_bytes(system.stack.home / "kvstore", rng)
            send(victim, signal.SIGKILL)
            detail += f", {num_bytes} bytes flipped in {num_files} segments"
    return Done((victim,), detail)


def flip_bytes(folder: Path, rng: random.Random) -> tuple[int, int]:
    """Flip bytes at random places of every segment; return how many bytes, of how many files."""
    num_bytes = num_files = 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        if size < MIN_SEGMENT_BYTES:
            continue
        num_files += 1
        with path.open("r+b") as file:
            for start in range(0, size, BYTES_PER_FLIP):
                file.seek(place := min(size - 1, start + rng.randrange(BYTES_PER_FLIP)))
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 0xFF]))
                num_bytes += 1
    return num_bytes, num_files
