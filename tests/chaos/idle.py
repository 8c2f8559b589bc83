"""Whether the system holds anything for requests that are over: blocks, leases, sequences."""

import asyncio
import itertools
import time

import aiohttp

from chaos.system import POLL_SECONDS, Member, System

GAUGES = (
    "pagoda_num_requests_waiting",
    "pagoda_num_requests_running",
    "pagoda_kv_leases",
    "pagoda_kv_cache_usage_ratio",
    "pagoda_num_requests_in_flight",
)
FREE_BLOCKS = "pagoda_kv_free_blocks"


async def free_blocks(system: System) -> dict[str, float]:
    """Free KV blocks of every worker by name; taken while nothing runs, it is what must return."""
    return {member.name: (await system.metrics(member))[FREE_BLOCKS] for member in system.workers()}


async def wait_idle(system: System, free_before: dict[str, float], seconds: float) -> "Idleness":
    """Wait until nothing is held; what still is then, is a leak."""
    started = time.monotonic()
    while True:
        held = await _held(system, free_before)
        elapsed = time.monotonic() - started
        if not held or elapsed > seconds:
            return Idleness(held, elapsed)
        await asyncio.sleep(POLL_SECONDS)


class Idleness:
    """What is still held (`name metric = value`) and after how many seconds that was so."""

    def __init__(self, held: list[str], seconds: float) -> None:
        self.held, self.seconds = held, seconds


async def _held(system: System, free_before: dict[str, float]) -> list[str]:
    """Ask all at once: one that answers late does not delay what the others say."""
    members = [member for member in system.members() if member.health_port is not None]
    held = [_held_by(system, member, free_before.get(member.name)) for member in members]
    return list(itertools.chain.from_iterable(await asyncio.gather(*held)))


async def _held_by(system: System, member: Member, free_before: float | None) -> list[str]:
    try:
        metrics = await system.metrics(member)
    except (aiohttp.ClientError, OSError, TimeoutError):
        return [f"{member.name} does not answer /metrics"]
    held = [f"{member.name} {name} = {metrics[name]:g}" for name in GAUGES if metrics.get(name)]
    free = metrics.get(FREE_BLOCKS)
    if free is not None and free != free_before:
        held.append(f"{member.name} {FREE_BLOCKS} = {free:g}, was {free_before:g}")
    return held
