"""The demo model's tokenizer: byte-level BPE, its special tokens and its chat template.

Writes `tokenizer.json` and `tokenizer_config.json`. Knows nothing of the corpus or the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# The order is the token id; weights already published depend on it.
SPECIAL_TOKENS = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>")
BOS_ID, END_ID, PAD_ID = 0, 1, 5

# `role marker, text, <|end|>` per message, so that a turn ends with the token that ends generation.
# Tools and their calls are written as the Hermes and Qwen families write them; the model has learnt
# none of it, a grammar has it speak so.
CHAT_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content | trim ~ '\\n\\n' }}
    {%- endif %}
    {{- 'Call functions like this:\\n<tool_call>\\n{"name": "f", "arguments": {}}\\n</tool_call>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- eos_token }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('role must be system, user, assistant or tool, not ' ~ message.role) }}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<|user|><tool_response>\\n' ~ message.content ~ '\\n</tool_response>' ~ eos_token }}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|' ~ message.role ~ '|>' ~ message.content | trim }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n' ~ (call.function | tojson) ~ '\\n</tool_call>' }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn merges from `texts`. Every byte is in the alphabet, so any UTF-8 text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # For plain completions; a rendered chat already begins with <|bos|> and is encoded without.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", BOS_ID)]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length_tokens: int) -> None:
    """Write the tokenizer to `folder` in the layout that `transformers.AutoTokenizer` reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_ID],
        "eos_token": SPECIAL_TOKENS[END_ID],
        "pad_token": SPECIAL_TOKENS[PAD_ID],
        "model_max_length": max_length_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
