"""Grammars that bind a model's output, compiled by llguidance for one model's tokenizer.

A grammar is llguidance's JSON text. Gateways compile to refuse what cannot be served, workers to
enforce it. Knows no request. Importing this imports llguidance.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pagoda_runtime.errors import GrammarError

MAX_GRAMMAR_BYTES = 128 << 10
MAX_CACHED = 16
IDLE_SECONDS = 60.0  # what nobody has asked for since then is forgotten when somebody asks next
MAX_LEXER_STATES = 40_000  # 15 to 30 MB of one grammar, of some regexes up to 170
MAX_ERROR_CHARS = 500

_LIMITS = LLParserLimits(
    step_lexer_fuel=100_000,
    step_max_items=25_000,
    max_lexer_states=MAX_LEXER_STATES,
    verbose_errors=False,
)
"""Work for one token, about 10 ms, and for a whole grammar; see docs/adr/0015."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar that can be followed, and how long its compiling took."""

    text: str
    seconds: float
    start: LLMatcher

    def matcher(self) -> LLMatcher:
        """Return a matcher at its start; all of them share their lexer states, and the limit."""
        return self.start.deep_copy()

    def limit_met(self) -> str:
        """Return which limit the lexer has met, after which nothing goes on; empty: none."""
        matcher = self.matcher()
        matcher.compute_bitmask()
        return _shown(matcher.get_error())


class GrammarCompiler:
    """Compiles for one tokenizer, and remembers the latest. Any thread may call.

    Attributes:
        eos_token_ids: what may follow a whole output.
    """

    def __init__(
        self,
        tokenizer_json: str,
        *,
        vocab_size: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Build the tables of a tokenizer; takes a second for the largest.

        Args:
            tokenizer_json: text of tokenizer.json.
            vocab_size: bits of a mask at least; None: as many as there are tokens.
            eos_token_ids: see the attribute; None: what the tokenizer names.
            clock: seconds.

        Raises:
            GrammarError: the tokenizer is of a kind that cannot be used.
        """
        ends = None if eos_token_ids is None else list(eos_token_ids)
        try:
            whole = LLTokenizer(tokenizer_json, eos_token=ends, slices=[])
            plain = _PlainText(whole, num_bits=vocab_size or 0)
            wrapper = TokenizerWrapper(plain)
            self._tokenizer = LLTokenizer(wrapper, eos_token=whole.eos_tokens)
            plain.tokens = wrapper.tokens = []  # tens of megabytes, which it has copied
        except Exception as error:  # whatever a Rust library says of a strange file
            raise GrammarError(f"no grammars with this tokenizer: {_shown(str(error))}") from error
        self.eos_token_ids = tuple(self._tokenizer.eos_tokens)
        self._clock = clock
        self._compiled: OrderedDict[str, tuple[float, CompiledGrammar]] = OrderedDict()
        self._lock = threading.Lock()

    def cached(self, text: str) -> CompiledGrammar | None:
        """Return what was compiled lately; takes no time."""
        with self._lock:
            self._forget_idle()
            _, compiled = self._compiled.get(text, (0.0, None))
            if compiled is not None:
                self._remember(compiled)
            return compiled

    def compile(self, text: str) -> CompiledGrammar:
        """Compile anew, and remember it.

        Raises:
            GrammarError: see `compile_apart`.
        """
        compiled = self.compile_apart(text)
        with self._lock:
            self._remember(compiled)
        return compiled

    def forget(self, compiled: CompiledGrammar) -> None:
        """Give it to nobody else: its lexer has met a limit, which holds for all its matchers."""
        with self._lock:
            _, remembered = self._compiled.get(compiled.text, (0.0, None))
            if remembered is compiled:
                del self._compiled[compiled.text]

    def compile_apart(self, text: str) -> CompiledGrammar:
        """Compile anew for the caller alone.

        Raises:
            GrammarError: it is too large, wrong, or too complex even for its first token.
        """
        size = len(text.encode())
        if size > MAX_GRAMMAR_BYTES:
            raise GrammarError(f"it has {size} bytes; the limit is {MAX_GRAMMAR_BYTES}")
        started = time.perf_counter()
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS)
        check(matcher)
        matcher.compute_bitmask()
        check(matcher)
        return CompiledGrammar(text, time.perf_counter() - started, matcher)

    def fault(self, text: str) -> str:
        """Return why llguidance does not even read a grammar; empty if it does, or it is large.

        Quicker than `compile`, and nothing is remembered.
        """
        if len(text) > MAX_GRAMMAR_BYTES:
            return ""
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS)
        return _shown(matcher.get_error()) if matcher.is_error() else ""

    def _remember(self, compiled: CompiledGrammar) -> None:
        """Note that it is used now, and forget those that others have pushed out, or left alone."""
        self._compiled[compiled.text] = (self._clock(), compiled)
        self._compiled.move_to_end(compiled.text)
        self._forget_idle()

    def _forget_idle(self) -> None:
        now = self._clock()
        for text, (used_at, _) in list(self._compiled.items()):
            if len(self._compiled) <= MAX_CACHED and used_at >= now - IDLE_SECONDS:
                break  # those behind it were used later
            del self._compiled[text]


class _PlainText:
    """A tokenizer of what a grammar writes: text that looks like a special token is no such token.

    llguidance takes text that is forced as its tokenizer has it, which of "<s>" is often the token
    that begins a prompt, and then does not match that token with the text; so does text that the
    tokenizer normalises. For what is here see `TokenizerWrapper`.
    """

    bos_token_id = None

    def __init__(self, whole: LLTokenizer, *, num_bits: int) -> None:
        """Take what `whole` has, and ids that are no tokens up to `num_bits`."""
        self._whole = whole
        self.eos_token_id = whole.eos_token
        self.tokens = [whole.decode_bytes([i]) for i in range(whole.vocab_size)]
        self.tokens += [_no_token(i) for i in range(whole.vocab_size, num_bits)]
        self.special_token_ids = [
            i
            for i, token in enumerate(self.tokens)
            if token == _no_token(i) or whole.is_special_token(i)
        ]
        self._special = frozenset(self.special_token_ids)

    def __call__(self, text: bytes) -> list[int]:
        token_ids = self._whole.tokenize_bytes(text)
        is_text = self._special.isdisjoint(token_ids)
        if is_text and self._whole.decode_bytes(token_ids) == text:
            return token_ids
        return self._whole.greedy_tokenize(text.decode())  # knows tokens of text alone, and no norm


def _no_token(token_id: int) -> bytes:
    """Return what llguidance calls an id that is nothing's, or an empty token's."""
    return b"<[%d]>" % token_id


def check(matcher: LLMatcher) -> None:
    """Raise GrammarError if a matcher has failed; it never recovers."""
    if matcher.is_error():
        raise GrammarError(_shown(matcher.get_error()))


def _shown(message: str) -> str:
    """Return the first line, and the reason that regexes have in a later one."""
    first, *others = message.strip().split("\n")
    if first == "NoExtensionBias":  # llguidance's word for it
        return "no text of it ends: its rules need one another for ever"
    if first.endswith("regex parse error:"):
        reasons = (line for line in others if line.startswith("error: "))
        first = f"{first} {next(reasons, '').removeprefix('error: ')}"
    return first if len(first) <= MAX_ERROR_CHARS else first[:MAX_ERROR_CHARS] + "..."
