"""Which dialect a chat template shows."""

import pytest

from pagoda_gateway.dialects.dialect import Dialect

LLAMA = "<|start_header_id|>user<|end_header_id|>"


@pytest.mark.parametrize(
    ("source", "name", "marks"),
    [
        ("<tool_call>{{ call | tojson }}</tool_call>", "hermes", {"<tool_call>", "</tool_call>"}),
        (LLAMA + '{"name": name, "parameters": dictionary}', "llama3", {"<|python_tag|>"}),
        (LLAMA, "hermes", {"<tool_call>", "</tool_call>"}),
        ("[TOOL_CALLS][{{ call }}]", "mistral", {"[TOOL_CALLS]", "[ARGS]"}),
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
    with pytest.raises(ValueError, match=r"'xml'.*auto, gemma4, harmony, hermes, llama3"):
        Dialect.of("", "xml")


def test_a_prompt_opens_reasoning() -> None:
    dialect = Dialect.of("</think>")
    assert dialect.opens_reasoning("<|assistant|><think>\n")
    assert not dialect.opens_reasoning("<|assistant|><think>\n\n</think>\n\n")
    assert not Dialect.of("").opens_reasoning("say <think>")
