"""One case from its stack's start to its end: load, faults, recovery, idle, nobody left behind."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import psutil
from support.stack import Stack, running_stack

from chaos.cases import Case
from chaos.drop import drop_streams
from chaos.faults import Action, inject
from chaos.idle import free_blocks, wait_idle
from chaos.load import Load
from chaos.prompts import draw_prompts, record
from chaos.streams import CONNECT_SECONDS, MAX_LINE_BYTES, Outcome, Prompt, Stream, ask
from chaos.system import Member, System
from chaos.tally import CaseResult

READY_SECONDS = 60.0
IDLE_SECONDS = 10.0
MAX_DROP_SECONDS = 1.0  # from the moment clients are gone until nothing is held for them
PROBE = Prompt("What ho!", 1)
ENVIRON = {
    "PAGODA_DTYPE": "float32",  # so that text does not depend on the batch
    # Little more than the load needs, so that blocks are evicted and come back from the kvstore.
    "PAGODA_PREFILL_NUM_BLOCKS": "400",
    "PAGODA_DECODE_NUM_BLOCKS": "800",
    "PAGODA_GATEWAY_DRAIN_SECONDS": "30",
    "PAGODA_PREFILL_DRAIN_SECONDS": "30",
    "PAGODA_DECODE_DRAIN_SECONDS": "30",
}


@dataclass(frozen=True, slots=True)
class Options:
    """How hard."""

    num_faults: int = 20  # of a case
    num_streams: int = 24  # at a time
    num_tokens: int = 160  # of a stream
    num_prompts: int = 48
    topology: str = "prefill=2,decode=2"
    pause_seconds: tuple[float, float] = (2.0, 6.0)
    silence_seconds: float = 30.0  # a stream without a word for so long hangs
    max_wait_seconds: float = 1.5  # before a fault, at random
    seed: int = 1


class Runner:
    """Runs cases; the undisturbed text is recorded once, by the first."""

    def __init__(
        self, options: Options, home: Path, report: Callable[[str], None] = lambda _: None
    ) -> None:
        self._options, self._home, self._report = options, home, report
        rng = random.Random(options.seed)
        self._prompts = draw_prompts(options.num_prompts, options.num_tokens, rng)
        self._expected: dict[str, str] = {}

    async def run(self, case: Case) -> CaseResult:
        """Return what the case cost; its stack's logs stay in `home / case.name`."""
        environ = ENVIRON | {"PAGODA_TOPOLOGY": self._options.topology}
        with running_stack(self._home / case.name, environ) as stack:
            result = await self._run_on(stack, case)
            children = psutil.Process(stack.process.pid).children(recursive=True)
        if stack.process.returncode:
            result.problems.append(f"`pagoda up` ended with {stack.process.returncode}")
        _, alive = psutil.wait_procs(children, timeout=1)
        result.problems += [f"left running: pid {process.pid}" for process in alive]
        return result

    async def _run_on(self, stack: Stack, case: Case) -> CaseResult:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        headers = {"Authorization": f"Bearer {stack.api_key}"}
        # A connection each, and never one that died with a gateway.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers, read_bufsize=MAX_LINE_BYTES
        ) as session:
            system = System(stack, session)
            free_before = await free_blocks(system)
            if not self._expected:
                self._expected = await record(
                    session,
                    stack.url,
                    stack.model,
                    self._prompts,
                    silence=self._options.silence_seconds,
                )
            result = CaseResult(case, self._expected)
            if case.num_dropped:
                await self._drop(case, system, session, free_before, result)
            else:
                await self._faults(case, system, session, result)
                idleness = await wait_idle(system, free_before, IDLE_SECONDS)
                result.idle_seconds = idleness.seconds
                result.problems += [f"still held: {text}" for text in idleness.held]
                if any(fault.action is Action.DAMAGE for fault in case.faults):
                    await self._note_damage(system, result)
            return result

    async def _faults(
        self, case: Case, system: System, session: aiohttp.ClientSession, result: CaseResult
    ) -> None:
        options, stack = self._options, system.stack
        rng = random.Random(f"{options.seed} {case.name}")
        load = Load(
            session,
            stack.url,
            stack.model,
            prompts=self._prompts,
            expected=self._expected,
            width=options.num_streams,
            silence=options.silence_seconds,
            rng=rng,
        )
        faults = list(case.faults)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.run())
            for number in range(options.num_faults):
                if number % len(faults) == 0 and case.name == "mixed":
                    rng.shuffle(faults)
                await load.full()
                await asyncio.sleep(rng.uniform(0, options.max_wait_seconds))
                fault = faults[number % len(faults)]
                row, started = result.row(str(fault)), time.monotonic()
                done = await inject(fault, system, rng, options.pause_seconds)
                self._note(result, done.detail)
                if fault.action is not Action.NONE:
                    recovery = await self._recovery(system, session, done.replaced, started)
                    row.recovery_seconds = max(row.recovery_seconds, recovery)
                    if recovery == float("inf"):
                        result.problems.append(
                            f"{done.detail}: no answer {READY_SECONDS:g} s later"
                        )
                await load.over()
                row.num_faults += 1
                touched = [stream for stream in load.ended if stream.ended >= started]
                row.streams += touched
                refused = [s.ended for s in touched if s.outcome is Outcome.REFUSED]
                row.refused_seconds = max(row.refused_seconds, max(refused, default=0) - started)
                load.ended.clear()
            load.stop()

    async def _note_damage(self, system: System, result: CaseResult) -> None:
        """Say how much of the damage was met: a case in which nobody read it shows nothing."""
        for member in system.of_role("kvstore"):
            metrics = await system.metrics(member)
            number = metrics.get("pagoda_kvstore_bad_digests_total", 0.0)
            self._note(result, f"{member.name} (pid {member.pid}) met {number:g} damaged blocks")

    def _note(self, result: CaseResult, text: str) -> None:
        """Keep the moment of a fault, in the logs' time, to be found there."""
        result.injected.append(f"{datetime.now(UTC):%H:%M:%S.%f} {text}")
        self._report(text)

    async def _recovery(
        self,
        system: System,
        session: aiohttp.ClientSession,
        replaced: Sequence[Member],
        started: float,
    ) -> float:
        """Seconds from the fault until everybody is ready and a new stream ends well."""
        until = started + READY_SECONDS
        await system.wait_ready(replaced, READY_SECONDS)
        while (remaining := until - time.monotonic()) > 0:
            probe = Stream(PROBE)
            stack = system.stack
            await ask(session, stack.url, stack.model, probe, silence=remaining)
            if probe.outcome is Outcome.OK:
                return time.monotonic() - started
            await asyncio.sleep(0.1)
        return float("inf")

    async def _drop(
        self,
        case: Case,
        system: System,
        session: aiohttp.ClientSession,
        free_before: dict[str, float],
        result: CaseResult,
    ) -> None:
        rng = random.Random(f"{self._options.seed} {case.name}")
        row = result.row(f"drop {case.num_dropped}")
        for _ in range(self._options.num_faults):
            streams = await drop_streams(system.stack, session, case.num_dropped, rng)
            idleness = await wait_idle(system, free_before, IDLE_SECONDS)
            row.num_faults += 1
            row.streams += streams
            row.recovery_seconds = max(row.recovery_seconds, idleness.seconds)
            waiting = sum(1 for stream in streams if not stream.num_chunks)
            self._note(
                result,
                f"dropped {len(streams)}, {waiting} before their first token; "
                f"idle after {idleness.seconds:.2f} s",
            )
            result.problems += [f"still held: {text}" for text in idleness.held]
        result.idle_seconds = row.recovery_seconds
        if row.recovery_seconds > MAX_DROP_SECONDS:
            seconds = f"{row.recovery_seconds:.2f} s"
            result.problems.append(f"idle {seconds} after a drop; limit {MAX_DROP_SECONDS:g} s")
