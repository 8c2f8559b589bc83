"""Tools and calls that a template does not show: said in the form that its answers are read in."""

# ruff: noqa: RUF001  (DeepSeek's marks)

import json
from typing import Any

import pytest
from support.output_parts import parts_of, reading

from pagoda_gateway.dialects import Dialect, Tool
from pagoda_gateway.text.templates.chat_template import ChatTemplate

# Writes calls where there is no text, and tools never: DeepSeek V3, R1.
V3 = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is none %}{% for c in m.tool_calls %}"
    "<｜tool▁call▁begin｜>{{ c.type + '<｜tool▁sep｜>' + c.function.name + '\n```json\n' "
    "+ c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
# Writes calls, and no tools: V3.1.
V31 = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<｜tool▁call▁begin｜>{{ c.function.name + '<｜tool▁sep｜>' + c.function.arguments }}"
    "<｜tool▁call▁end｜>{% endfor %}{% endfor %}"
)
# Knows nothing of either.
BARE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
# Says how calls are written, and writes none: Granite 3.
GRANITE = "{# respond only with <|tool_call|> #}" + BARE
# Shows tools that a system's message has, and no calls: Phi 4 mini.
PHI = "{# <|tool|> <|/tool|> #}" + BARE

TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Of a city.", "parameters": {"type": "object"}},
    },
    {"type": "function", "function": {"name": "go"}},
]
GO = {"role": "user", "content": "go"}


def read_by_its_own_form(source: str) -> ChatTemplate:
    template = ChatTemplate(source, {})
    template.leave_tools_alone()
    return template


def answer(template: ChatTemplate) -> dict[str, Any]:
    """Return an answer with two calls, as the template wants them."""
    calls = []
    for name, arguments in (("look", {"city": "Zürich"}), ("go", {})):
        shown = json.dumps(arguments) if template.shape.arguments_text else arguments
        calls.append(
            {"id": name, "type": "function", "function": {"name": name, "arguments": shown}}
        )
    return {"role": "assistant", "content": "Well.", "tool_calls": calls}


@pytest.mark.parametrize("source", [V3, V31, GRANITE, PHI, BARE])
def test_what_is_said_is_read_as_answers_are(source: str) -> None:
    dialect = Dialect.of(source)
    has_form = dialect.name != "hermes"
    template = read_by_its_own_form(source) if has_form else ChatTemplate(source, {})
    shown = template.render([GO, answer(template)], tools=TOOLS)
    begun, _, said = shown.partition("[assistant]")
    _, _, calls = reading(parts_of(dialect.parser([Tool("look"), Tool("go")]), [said]))
    assert [(name, json.loads(text)) for name, text in calls] == [
        ("look", {"city": "Zürich"}),
        ("go", {}),
    ]
    assert begun.startswith("[system]")
    assert "look" in begun
    assert "Of a city." in begun
    assert ("<tool_call>" in begun) is not has_form


def test_who_is_read_as_hermes_is_told_so() -> None:
    shown = ChatTemplate(V31, {}).render([GO], tools=TOOLS)
    assert "<tool_call>" in shown
    assert "<｜tool▁calls▁begin｜>" not in shown


def test_deepseek_says_how_a_call_is_written() -> None:
    fenced = read_by_its_own_form(V3).render([GO], tools=TOOLS)
    plain = read_by_its_own_form(V31).render([GO], tools=TOOLS)
    head = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    assert (
        f"{head}function<｜tool▁sep｜>tool_call_name\n```json\ntool_call_arguments\n```" in fenced
    )
    assert f"{head}tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>" in plain
    assert "### go\nDescription: \n\nParameters: {}" in plain


def test_lists_are_said_between_their_marks() -> None:
    phi, granite = (
        read_by_its_own_form(source).render([GO], tools=TOOLS) for source in (PHI, GRANITE)
    )
    assert phi.startswith('[system]<|tool|>[{"name": "look", "description": "Of a city."')
    assert phi.endswith('{"name": "go"}]<|/tool|>[user]go')
    assert "respond only with <|tool_call|> followed by a JSON list" in granite
    assert granite.endswith('{"name": "go"}][user]go')


def test_a_form_that_a_setting_names_is_not_said() -> None:
    assert read_by_its_own_form(BARE).render([GO], tools=TOOLS) == "[user]go"
