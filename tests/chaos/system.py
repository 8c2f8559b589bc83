"""The processes of a running stack by name, from outside: ids, signals, readiness, metrics."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families
from support.stack import Stack

ASK_SECONDS = 2.0
POLL_SECONDS = 0.1
INFRASTRUCTURE = {"nats-server": "nats", "redis-server": "redis"}
_MODULE = re.compile(r"pagoda_(gateway|router|kvstore|prefill|decode)(\.accounts\.usage\.applier)?")
_PORTS = {"gateway": "PAGODA_HTTP_PORT", "applier": "PAGODA_GATEWAY_HEALTH_PORT"}


@dataclass(frozen=True, slots=True)
class Member:
    """One process now; after a restart the same name has another pid."""

    name: str
    role: str
    pid: int
    health_port: int | None


class System:
    """Who runs under one `pagoda up`."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession) -> None:
        self.stack = stack
        self._session = session
        self._names: dict[tuple[str, int | None], str] = {}
        self.names = sorted(member.name for member in self.members())

    def members(self) -> list[Member]:
        """The processes that run now, in order of name."""
        found = []
        for process in psutil.Process(self.stack.process.pid).children():
            with contextlib.suppress(psutil.Error, OSError):
                if (identity := self._identify(process)) is not None:
                    found.append((*identity, process.pid))
        members = []
        for role, port, pid in sorted(found, key=lambda item: (item[0], item[1] or 0)):
            number = 1 + sum(1 for known_role, _ in self._names if known_role == role)
            name = self._names.setdefault((role, port), f"{role}-{number}")
            members.append(Member(name, role, pid, port))
        return members

    def of_role(self, role: str) -> list[Member]:
        """Those of one role."""
        return [member for member in self.members() if member.role == role]

    def workers(self) -> list[Member]:
        """Those that hold KV blocks."""
        return [member for member in self.members() if member.role in ("prefill", "decode")]

    async def wait_ready(self, replaced: Iterable[Member], seconds: float) -> bool:
        """Wait until all run and say so, and those of `replaced` run with another pid."""
        old = {member.pid for member in replaced}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    members = self.members()
                    is_complete = sorted(member.name for member in members) == self.names
                    if is_complete and not old & {member.pid for member in members}:
                        answers = [self._is_ready(member) for member in members]
                        if all(await asyncio.gather(*answers)):
                            return True
                    await asyncio.sleep(POLL_SECONDS)
        return False

    async def metrics(self, member: Member) -> dict[str, float]:
        """Name -> sum over the labels, of all that the process exports."""
        url = f"http://127.0.0.1:{member.health_port}/metrics"
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        async with self._session.get(url, timeout=timeout) as answer:
            text = await answer.text()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    async def _is_ready(self, member: Member) -> bool:
        if member.health_port is None:
            return True
        timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
        url = f"http://127.0.0.1:{member.health_port}/readyz"
        try:
            async with self._session.get(url, timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _identify(self, process: psutil.Process) -> tuple[str, int | None] | None:
        command = process.cmdline()
        if not command:
            return None
        for binary, role in INFRASTRUCTURE.items():
            if binary in command[0]:
                return role, None
        match = _MODULE.fullmatch(command[-1])
        if match is None:
            return None
        role = "applier" if match[2] else match[1]
        variable = _PORTS.get(role, f"PAGODA_{role.upper()}_HEALTH_PORT")
        return role, int(process.environ()[variable])


def send(member: Member, number: signal.Signals) -> None:
    """Signal a process by its id; one that is gone already is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(member.pid, number)
