r"""How a text is cut before its bytes are merged, by the name that llama.cpp has for it.

A GGUF file has the name alone (`tokenizer.ggml.pre`), a file of tiktoken's not even that; the
expressions are those of the models' own tokenizer.json or code. An expression cuts at each of its
matches; what it leaves is a piece, too.
"""

from dataclasses import dataclass
from typing import Any

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED}|{_REST}"
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_SLASHED}|{_REST}"
)
_NO_HAN = r"&&[^\p{Han}]"
_KIMI = (
    rf"[\p{{Han}}]+"
    rf"|{_BEFORE}{_UPPER[:-1]}{_NO_HAN}]*{_LOWER[:-1]}{_NO_HAN}]+{_CONTRACTION}?"
    rf"|{_BEFORE}{_UPPER[:-1]}{_NO_HAN}]+{_LOWER[:-1]}{_NO_HAN}]*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_REST}"
)

_CASED = (  # letters with a case, as DeepSeek's tokenizer.json lists them
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90"
    "-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d"
    "\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-"
    "\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK = (
    "[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
)
_BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut.

    Attributes:
        expressions: one after the other, each cuts what those before have left; none: GPT-2's.
        digits_apart: every digit is a piece, before any expression.
        normalises: to NFC, before anything else.
        ignores_merges: a piece that is a token is that token, whatever merges would make of it.
        adds_bos: where the file does not say whether BOS precedes a text.
    """

    expressions: tuple[str, ...] = ()
    digits_apart: bool = False
    normalises: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def steps(self) -> dict[str, Any]:
        """Return the pre-tokenizer of tokenizer.json."""
        steps: list[dict[str, Any]] = []
        if self.digits_apart:
            steps.append({"type": "Digits", "individual_digits": True})
        steps += [
            {
                "type": "Split",
                "pattern": {"Regex": expression},
                "behavior": "Isolated",
                "invert": False,
            }
            for expression in self.expressions
        ]
        steps.append(byte_level(use_regex=not self.expressions))
        return {"type": "Sequence", "pretokenizers": steps}


def byte_level(use_regex: bool) -> dict[str, Any]:
    """Return the step that writes bytes as characters, or the decoder that reads them again."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


_LLAMA_3 = PreTokenizer((_LLAMA3,), ignores_merges=True, adds_bos=True)
_GPT_2 = PreTokenizer()
_DIGITS = PreTokenizer(digits_apart=True)

CL100K = PreTokenizer(
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++\z|\s*[\r\n]|\s+(?!\S)|\s",
    )
)
"""As tiktoken itself has it: a text's last spaces are one piece, with what newlines they have."""

PRE_TOKENIZERS = {
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "pixtral": _LLAMA_3,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "dbrx": PreTokenizer((_LLAMA3,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,), ignores_merges=True),
    "qwen2": PreTokenizer((_QWEN2,), normalises=True),
    "deepseek-r1-qwen": PreTokenizer((_QWEN2,)),
    "megrez": PreTokenizer((_QWEN2,)),
    "stablelm2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,)),
    "tekken": PreTokenizer((_TEKKEN,), ignores_merges=True, adds_bos=True),
    "kimi-k2": PreTokenizer((_KIMI,), ignores_merges=True),
    "gpt-4o": PreTokenizer((_GPT4O,)),
    "llama4": PreTokenizer((_GPT4O,)),
    "deepseek-llm": PreTokenizer(_DEEPSEEK, digits_apart=True),
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
    "gpt-2": _GPT_2,
    "phi-2": _GPT_2,
    "olmo": PreTokenizer(normalises=True),
    "mpt": PreTokenizer(normalises=True),
    "bloom": PreTokenizer((_BLOOM,)),
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "smollm": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": PreTokenizer(digits_apart=True, normalises=True),
}


def _byte_chars() -> dict[int, str]:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {byte: chr(256 + i) for i, byte in enumerate(others)}
    return {byte: shifted.get(byte, chr(byte)) for byte in range(256)}


BYTE_CHARS = _byte_chars()
"""The character that stands for each byte where tokens are of bytes, as GPT-2 has it."""
