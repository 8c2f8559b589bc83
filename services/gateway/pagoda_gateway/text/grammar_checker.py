"""Grammars compiled once before a worker sees them, and what of a request is to blame if they fail.

Knows no language: `grammars` writes them.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson

from pagoda_gateway.errors import InvalidRequestError, UnavailableError, UnfollowableError
from pagoda_gateway.text.grammars import Rules
from pagoda_gateway.text.schemas.faults import fault_of
from pagoda_gateway.turns import Turns
from pagoda_runtime.errors import GrammarError
from pagoda_runtime.grammar import GrammarCompiler

COMPILE_SECONDS = 2.0
WAIT_SECONDS = 5.0
RETRY_AFTER_SECONDS = 2.0
MAX_COMPILING = 2
BLAME_SECONDS = 0.25  # to find what is to blame, and where it is
MAX_BLAMED = 16  # named in one answer


@dataclass(frozen=True, slots=True)
class Source:
    """What a part of a grammar was made of.

    Attributes:
        param: the request's field.
        rules: the part.
        words: what else to call it by.
        schema: that `rules` enforce, as the client wrote it; None: they enforce none.
    """

    param: str
    rules: Rules
    words: str = ""
    schema: dict[str, Any] | None = None

    def error(self, why: str) -> str:
        """Return the message of what is wrong with it."""
        return f"'{self.param}': {self.words and self.words + ': '}{why}"


class GrammarThreads:
    """Where the grammars of all models compile, a few at a time.

    Attributes:
        executor: the threads.
        slots: to be held while one works; tenants take turns.
    """

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(MAX_COMPILING, thread_name_prefix="grammar")
        self.slots = Turns(MAX_COMPILING)

    def close(self) -> None:
        """Take nothing more; a compilation that runs ends by itself."""
        self.executor.shutdown(wait=False, cancel_futures=True)


class GrammarChecker:
    """Compiles what clients send, in threads of its own: it may take long, and lets go of the GIL.

    What it lets pass compiles on a worker in the same time.
    """

    def __init__(self, compiler: GrammarCompiler | None, threads: GrammarThreads) -> None:
        """Use one model's `compiler`; None: its tokenizer allows no grammars."""
        self._compiler = compiler
        self._threads = threads

    async def check(self, grammar: str, sources: Sequence[Source], tenant: str) -> None:
        """Return if workers can follow a tenant's `grammar`, made of at least one source.

        Raises:
            UnfollowableError: names the sources that are to blame, and why.
            UnavailableError: too many others are being compiled.
        """
        compiler, first = self._compiler, sources[0]
        if compiler is None:
            why = "the tokenizer of this model allows no grammars"
            raise InvalidRequestError(f"'{first.param}': {why}", param=first.param)
        if compiler.cached(grammar) is not None:
            return
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._threads.slots.acquire(tenant)
        except TimeoutError:
            raise UnavailableError(
                "too many grammars are being compiled; try again",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            ) from None
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads.executor, _compile, compiler, grammar, sources)
        work.add_done_callback(lambda _: self._threads.slots.release(tenant))
        try:
            async with asyncio.timeout(COMPILE_SECONDS):
                await asyncio.shield(work)
        except TimeoutError:
            work.add_done_callback(lambda done: done.exception())  # nobody waits for it now
            raise InvalidRequestError(
                f"'{first.param}': it takes over {COMPILE_SECONDS:g} s to compile; make it simpler",
                param=first.param,
            ) from None


def _compile(compiler: GrammarCompiler, grammar: str, sources: Sequence[Source]) -> None:
    """Compile, or say which sources are to blame; for the checker's threads."""
    try:
        compiler.compile(grammar)
    except GrammarError as error:
        raise _blamed(compiler, sources, str(error)) from error


def _blamed(compiler: GrammarCompiler, sources: Sequence[Source], why: str) -> UnfollowableError:
    """Return the error of what fails alone; of the first source if only all of them do."""
    deadline = time.monotonic() + BLAME_SECONDS
    faults: dict[int, str] = {}
    for index, source in enumerate(sources):
        if time.monotonic() > deadline:
            break
        if source.schema is None:
            fault = compiler.fault(orjson.dumps({"grammars": [source.rules]}).decode())
        else:
            rules = source.rules["json_schema"]
            fault = fault_of(compiler, rules, source.schema, deadline=deadline)
        if fault:
            faults[index] = source.error(fault)
    named = list(faults.values())[:MAX_BLAMED]
    named += [f"and {len(faults) - MAX_BLAMED} more"] * (len(faults) > MAX_BLAMED)
    first = sources[next(iter(faults), 0)]
    return UnfollowableError(
        "; ".join(named) or f"'{first.param}': {why}", param=first.param, at_fault=tuple(faults)
    )
