r"""How a text is cut before its bytes are merged, by the name in `tokenizer.ggml.pre`.

A GGUF file has the name alone; the expressions are those of the models' own tokenizer.json. An
expression cuts at each of its matches; what it leaves is a piece, too.
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


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut.

    Attributes:
        expression: the regular expression; empty: GPT-2's.
        digits_apart: every digit is a piece, before GPT-2's expression.
        normalises: to NFC, before anything else.
        ignores_merges: a piece that is a token is that token, whatever merges would make of it.
        adds_bos: where the file does not say whether BOS precedes a text.
    """

    expression: str = ""
    digits_apart: bool = False
    normalises: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def steps(self) -> dict[str, Any]:
        """Return the pre-tokenizer of tokenizer.json."""
        steps: list[dict[str, Any]] = []
        if self.digits_apart:
            steps.append({"type": "Digits", "individual_digits": True})
        if self.expression:
            steps.append(
                {
                    "type": "Split",
                    "pattern": {"Regex": self.expression},
                    "behavior": "Isolated",
                    "invert": False,
                }
            )
        steps.append(byte_level(use_regex=not self.expression))
        return {"type": "Sequence", "pretokenizers": steps}


def byte_level(use_regex: bool) -> dict[str, Any]:
    """Return the step that writes bytes as characters, or the decoder that reads them again."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


_LLAMA_3 = PreTokenizer(_LLAMA3, ignores_merges=True, adds_bos=True)
_GPT_2 = PreTokenizer()
_DIGITS = PreTokenizer(digits_apart=True)

PRE_TOKENIZERS = {
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "pixtral": _LLAMA_3,
    "smaug-bpe": PreTokenizer(_LLAMA3),
    "dbrx": PreTokenizer(_LLAMA3),
    "chatglm-bpe": PreTokenizer(_LLAMA3),
    "glm4": PreTokenizer(_LLAMA3, ignores_merges=True),
    "qwen2": PreTokenizer(_QWEN2, normalises=True),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2),
    "megrez": PreTokenizer(_QWEN2),
    "stablelm2": PreTokenizer(_QWEN2),
    "qwen35": PreTokenizer(_QWEN35),
    "tekken": PreTokenizer(_TEKKEN, ignores_merges=True, adds_bos=True),
    "gpt-4o": PreTokenizer(_GPT4O),
    "llama4": PreTokenizer(_GPT4O),
    "gpt-2": _GPT_2,
    "phi-2": _GPT_2,
    "olmo": PreTokenizer(normalises=True),
    "mpt": PreTokenizer(normalises=True),
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "smollm": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": PreTokenizer(digits_apart=True, normalises=True),
}
