"""Tiny model folders for tests: only what the gateway reads (tokenizer and chat template)."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS = "<|bos|>", "<|end|>"
BOS_ID, EOS_ID = 0, 1
SPECIALS = [BOS, EOS, "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}"
    "<|system|>{{ tool.function.name }}{{ eos_token }}{% endfor %}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('no role ' ~ message.role) }}{% endif %}"
    "<|{{ message.role if message.role != 'tool' else 'user' }}|>"
    "{{ message.content if message.content is not none else '' }}"
    "{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w"), ("o", "r")]


def byte_level_tokenizer() -> Tokenizer:
    """A byte-level BPE: specials, 256 bytes, a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*SPECIALS, *alphabet, *("".join(merge) for merge in MERGES)]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """As Llama 2 has it: a marker for spaces, byte tokens for everything rare."""
    space = "\u2581"
    words = ["h", "e", "l", "o", "he", "ll", space, space + "h", "w", "r", "d", "!", "a", "b"]
    pieces = [BOS, EOS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("h", "e"), ("l", "l"), (space, "h")]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=space, prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(space, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in (BOS, EOS)])
    return tokenizer


def write_model_folder(folder: Path, tokenizer: Tokenizer | None = None, **config: Any) -> Path:
    """Write tokenizer.json, tokenizer_config.json and config.json; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level_tokenizer()).save(str(folder / "tokenizer.json"))
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "chat_template": TEMPLATE,
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
