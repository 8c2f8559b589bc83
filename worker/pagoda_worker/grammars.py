"""Grammars of sequences: compiled beside the event loop, followed in the step's thread.

Knows llguidance's matchers and tokens. Knows nothing of messages.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from pagoda_engine import (
    TokenBits,
    TokenMask,
    TokenMaskError,
    give_back_freed,
    has_token,
    token_bits,
)
from pagoda_runtime.errors import GrammarError, ModelFolderError
from pagoda_runtime.grammar import CompiledGrammar, GrammarCompiler, check
from pagoda_runtime.tokenizer.text import tokenizer_text

logger = logging.getLogger(__name__)

COMPILE_SECONDS = 5.0  # gateways refuse what takes them less
QUICK_SECONDS = 0.02  # what compiles within it may be compiled in the step's thread
GIVE_BACK_SECONDS = 60.0
REFUEL_TOKENS = 16  # llguidance limits the work for all tokens from one mask to the next
PROGRESS_TOKENS = 256  # since it was, for it to be compiled once more
SLOW_SECONDS = 0.2  # what takes up to that may be, too, but seldom
SLOW_PROGRESS_TOKENS = 2048

T = TypeVar("T")


class Grammars:
    """Makes the masks of sequences."""

    def __init__(self, compiler: GrammarCompiler | None, vocab_size: int) -> None:
        """Use `compiler`; None: no grammar can be served."""
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._gave_back_at = time.monotonic()

    @classmethod
    def load(
        cls, model_folder: Path, *, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> "Grammars":
        """Read the tokenizer of a model folder or GGUF file; without one, serve no grammars."""
        try:
            text = tokenizer_text(model_folder)
            ends = sorted(eos_token_ids) or None
            compiler = GrammarCompiler(text, vocab_size=vocab_size, eos_token_ids=ends)
        except (OSError, UnicodeDecodeError, GrammarError, ModelFolderError) as error:
            logger.warning("no grammars, so no JSON mode and no forced tools: %s", error)
            return cls(None, vocab_size)
        return cls(compiler, vocab_size)

    async def mask(self, grammar: str) -> TokenMask:
        """Return the mask of a sequence that has no output yet.

        Raises:
            GrammarError: it cannot be served here.
        """
        compiler = self._compiler
        if compiler is None:
            raise GrammarError("this worker has no tokenizer that grammars need")
        compiled = compiler.cached(grammar)
        if compiled is None:
            try:
                async with asyncio.timeout(COMPILE_SECONDS):
                    compiled = await asyncio.to_thread(self._compile, compiler, grammar)
            except TimeoutError as error:
                raise GrammarError(f"it takes over {COMPILE_SECONDS:g} s to compile") from error
        return GrammarMask(compiler, compiled, self._vocab_size)

    def _compile(self, compiler: GrammarCompiler, grammar: str) -> CompiledGrammar:
        """Compile, and now and then give back what forgotten lexers have left: malloc keeps it."""
        compiled = compiler.compile(grammar)
        if time.monotonic() - self._gave_back_at > GIVE_BACK_SECONDS:
            self._gave_back_at = time.monotonic()
            give_back_freed()
        return compiled


class GrammarMask:
    """One sequence's way through its grammar: a function of its output alone.

    What is forced follows from the tokens before it, so the same tokens are forced again after a
    preemption or on another worker, wherever the output was cut.
    """

    def __init__(
        self, compiler: GrammarCompiler, compiled: CompiledGrammar, vocab_size: int
    ) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._renewed_at = -SLOW_PROGRESS_TOKENS  # tokens of output; states of its own since then
        self._looks_ahead = True  # until a limit was reached there
        self._forced: list[int] = []
        self._start(compiled)

    def bitmask(self, output_token_ids: Sequence[int]) -> TokenBits:
        """See `TokenMask`."""
        return self._answer(output_token_ids, self._allowed)

    def forced(self, output_token_ids: Sequence[int]) -> Sequence[int]:
        """See `TokenMask`."""
        try:
            return self._answer(output_token_ids, lambda: self._forced)
        except TokenMaskError:  # `bitmask` says it
            return ()

    def ahead(
        self, output_token_ids: Sequence[int], proposed_token_ids: Sequence[int]
    ) -> list[TokenBits]:
        """See `TokenMask`."""
        masks = [self.bitmask(output_token_ids)]
        if self._looks_ahead:
            forced, num_consumed = self._forced, 0
            try:
                for token_id in proposed_token_ids:
                    if not has_token(masks[-1], token_id):
                        break
                    num_consumed += self._advance(token_id)
                    masks.append(self._allowed())
                self._matcher.rollback(num_consumed)
                check(self._matcher)
                self._forced = forced
            except GrammarError:
                # A matcher does not come back from its limits: what was proposed may never come,
                # and what has come is followed again from its beginning.
                self._looks_ahead = False
                self._start(self._compiled)
        return masks

    def _answer(self, output_token_ids: Sequence[int], answer: Callable[[], T]) -> T:
        try:
            self._follow(output_token_ids)
            return answer()
        except GrammarError as error:
            self._compiler.forget(self._compiled)
            num_since = self._num_followed - self._renewed_at
            if num_since < self._least_progress():
                why = self._compiled.limit_met() or error  # of a token it says only "no such"
                raise TokenMaskError(f"the grammar: {why}") from error
        # Masks of others, and of places that this output has passed, have filled the states that
        # there may be. Its way alone takes few of them.
        self._renewed_at = self._num_followed
        try:
            self._start(self._compiler.compile_apart(self._compiled.text))
            return self._answer(output_token_ids, answer)
        except GrammarError as error:
            raise TokenMaskError(f"the grammar: {error}") from error

    def _least_progress(self) -> float:
        """Return how many tokens there are from one time that it is compiled to the next."""
        seconds = self._compiled.seconds
        if seconds <= QUICK_SECONDS:
            return PROGRESS_TOKENS
        return SLOW_PROGRESS_TOKENS if seconds <= SLOW_SECONDS else math.inf

    def _start(self, compiled: CompiledGrammar) -> None:
        self._compiled = compiled
        self._matcher = compiled.matcher()
        self._num_followed = 0
        self._forced = self._find_forced()

    def _follow(self, output_token_ids: Sequence[int]) -> None:
        for count, token_id in enumerate(output_token_ids[self._num_followed :], 1):
            self._num_followed += 1
            self._advance(token_id)
            if count % REFUEL_TOKENS == 0 and not self._matcher.is_stopped():
                self._matcher.compute_bitmask()

    def _advance(self, token_id: int) -> int:
        """Go past a token; returns how many the matcher has consumed: at the end none."""
        num_consumed = 0
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token_id)
            check(self._matcher)
            num_consumed = 1
        self._forced = self._forced[1:] or self._find_forced()
        return num_consumed

    def _find_forced(self) -> list[int]:
        if self._matcher.is_stopped():
            check(self._matcher)
            return [self._compiler.eos_token_ids[0]]
        return self._matcher.compute_ff_tokens()

    def _allowed(self) -> TokenBits:
        if self._forced:
            return token_bits(self._forced[:1], self._vocab_size)
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        check(self._matcher)
        if not mask.any():
            raise GrammarError("no token can follow")
        return mask[: -(-self._vocab_size // 32)]
