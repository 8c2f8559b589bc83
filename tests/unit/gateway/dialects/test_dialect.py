"""Which dialect a chat template shows."""

import pytest
from support.output_parts import cut, parts_of

from pagoda_gateway.dialects.dialect import Dialect
from pagoda_gateway.dialects.families import deepseek
from pagoda_gateway.dialects.families.deepseek import DeepSeek
from pagoda_gateway.dialects.families.glm import Glm
from pagoda_gateway.dialects.families.kimi import Kimi
from pagoda_gateway.dialects.families.olmo3 import Olmo3
from pagoda_gateway.dialects.parts import ContentText, ReasoningText

LLAMA = "<|start_header_id|>user<|end_header_id|>"


@pytest.mark.parametrize(
    ("source", "name", "marks"),
    [
        ("<tool_call>{{ call | tojson }}</tool_call>", "hermes", {"<tool_call>", "</tool_call>"}),
        (LLAMA + '{"name": name, "parameters": dictionary}', "llama3", {"<|python_tag|>"}),
        (LLAMA, "hermes", {"<tool_call>", "</tool_call>"}),
        ("[TOOL_CALLS][{{ call }}]", "mistral", {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"}),
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>", "kimi", set(Kimi.marks)),
        (deepseek.CALL + "{{ name }}" + deepseek.SEPARATOR, "deepseek", set(DeepSeek.marks)),
        (
            "<tool_call>{name}\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>",
            "glm",
            set(Glm.marks),
        ),
        ("respond with <|tool_call|> and a list", "granite", {"<|tool_call|>"}),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini", {"<|tool_call|>", "<|/tool_call|>"}),
        ("<|tool_call|>[]<|/tool_call|>", "phi4_mini", {"<|tool_call|>", "<|/tool_call|>"}),
        ("<TOOLCALL>{{ call }}</TOOLCALL>", "nemotron", {"<TOOLCALL>", "</TOOLCALL>"}),
        ("<functions>{{ tools }}<function_calls>", "olmo3", set(Olmo3.marks)),
        ("<|START_ACTION|>", "command_r7b", {"<|START_ACTION|>", "<|END_ACTION|>"}),
        ("<tool_call><function=x><parameter=y>", "qwen3_coder", {"<tool_call>", "</tool_call>"}),
        (
            "<seed:tool_call><function=x><parameter=y>",
            "seed_oss",
            {"<seed:tool_call>", "</seed:tool_call>"},
        ),
        (
            "{{ content.split('</think>') }}",
            "hermes",
            {"<tool_call>", "</tool_call>", "<think>", "</think>"},
        ),
    ],
)
def test_template_shows_the_dialect(source: str, name: str, marks: set[str]) -> None:
    dialect = Dialect.of(source)
    assert dialect.name == name
    assert set(dialect.marks) == marks
    assert (dialect.reasoning is not None) == ("<think>" in marks)


def test_a_setting_names_it() -> None:
    assert Dialect.of("<tool_call>", "mistral").name == "mistral"
    with pytest.raises(ValueError, match=r"'xml'.*auto, command_r7b, deepseek, gemma4, glm"):
        Dialect.of("", "xml")


def test_a_prompt_opens_reasoning() -> None:
    dialect = Dialect.of("</think>")
    assert dialect.opens_reasoning("<|assistant|><think>\n")
    assert not dialect.opens_reasoning("<|assistant|><think>\n\n</think>\n\n")
    assert not Dialect.of("").opens_reasoning("say <think>")


@pytest.mark.parametrize(
    ("opening", "close"),
    [
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ],
)
def test_reasoning_has_marks_of_its_own(opening: str, close: str) -> None:
    dialect = Dialect.of(f"[TOOL_CALLS]{opening}{close}")
    assert dialect.opens_reasoning(opening)
    assert {opening, close} < set(dialect.marks)
    assert parts_of(dialect.parser([]), cut(f"{opening}hm{close}4", range(40))) == [
        ReasoningText("hm"),
        ContentText("4"),
    ]
