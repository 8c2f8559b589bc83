"""A model folder whose template and tokens are harmony's, as far as a gateway can tell."""

from pathlib import Path

from tokenizers import AddedToken

from pagoda_gateway.dialects.families.harmony import Harmony
from support.tiny_tokenizer import byte_level_tokenizer, write_model_folder

TEMPLATE = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% for tool in tools or [] %}<|start|>developer<|message|>{{ tool.function.name }}"
    "{{ ' // ' + tool.function.description }}<|end|>"
    "{% endfor %}{% set last = namespace(name='') %}{% for message in messages %}"
    "{% if message.role == 'assistant' and message.tool_calls %}"
    "{% if message.content and message.thinking %}"
    "{{ raise_exception('content or thinking, not both') }}{% endif %}"
    "{% set thought = message.content or message.thinking %}"
    "{% if thought %}<|start|>assistant<|channel|>analysis<|message|>{{ thought }}<|end|>"
    "{% endif %}{% set call = message.tool_calls[0].function %}{% set last.name = call.name %}"
    "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>"
    "{{ call.arguments | tojson }}<|call|>"
    "{% elif message.role == 'tool' %}<|start|>functions.{{ last.name }} to=assistant"
    "<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>"
    "{% elif message.role == 'assistant' %}"
    "<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>"
    "{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def write_harmony_folder(folder: Path) -> Path:
    """Write tokenizer, template and configuration; every mark is a special token."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in Harmony.marks])
    return write_model_folder(folder, tokenizer, chat_template=TEMPLATE, eos_token="<|return|>")
