"""Tools of free text: what they are offered as, and what is wrong with them."""

import time
from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.openai.schemas.tools import tool_use

LOOK = {"type": "function", "function": {"name": "look"}}


def custom(name: str = "patch", **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **fields}}


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def test_a_model_is_offered_a_function_of_one_text() -> None:
    tools = [LOOK, custom(description="Edits.", format={"type": "text"})]
    use = tool_use(tools, None, None)
    assert use.offered is not None
    assert use.offered[0] is LOOK
    assert use.offered[1] == {
        "type": "function",
        "function": {
            "name": "patch",
            "description": "Edits.",
            "parameters": {
                "type": "object",
                "properties": {"input": {"type": "string"}},
                "required": ["input"],
            },
        },
    }
    assert (use.texts, use.free, use.is_strict) == (frozenset({"patch"}), (), False)
    assert tools[1]["type"] == "custom"  # the body is as it was


def test_a_pattern_is_enforced_and_a_grammar_is_shown() -> None:
    lark = 'start: "a" | "b"'
    tools = [custom("x", format=grammar("regex", "a|b")), custom("y", format=grammar("lark", lark))]
    use = tool_use(tools, None, None)
    x, y = (tool["function"] for tool in use.offered or ())
    assert x["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert (x["strict"], "strict" in y, use.is_strict) == (True, False, True)
    assert lark in y["parameters"]["properties"]["input"]["description"]
    assert [use.all_places[i] for i in use.free] == ["tools[1]"]
    assert tool_use(tools, "none", None).free == ()


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "patch"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "custom", "custom": {"name": "patch"}}],
            },
        },
    ],
)
def test_a_choice_names_one(choice: dict[str, Any]) -> None:
    use = tool_use([LOOK, custom()], choice, None)
    assert [tool["function"]["name"] for tool in use.callable] == ["patch"]
    assert use.is_required
    assert use.is_named == (choice["type"] == "custom")


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "custom"}, "tools[0]"),
        ({"type": "custom", "name": "patch"}, "tools[0]"),  # as the Responses API has it
        ({"type": "custom", "custom": []}, "tools[0]"),
        (custom(""), "tools[0].custom.name"),
        (custom(description=5), "tools[0].custom.description"),
        (custom(format="text"), "tools[0].custom.format"),
        (custom(format={"type": "grammar"}), "tools[0].custom.format"),
        (custom(format=grammar("gbnf", "x")), "tools[0].custom.format"),
        (custom(format=grammar("regex", "a)|(b")), "tools[0].custom.format"),
        (custom(format=grammar("regex", r"(a\)")), "tools[0].custom.format"),
        (custom(format=grammar("lark", 5)), "tools[0].custom.format"),  # type: ignore[arg-type]
        (custom(format={"type": "grammar", "syntax": "lark", "definition": ""}),
         "tools[0].custom.format"),
        ({"type": ["custom"], "custom": {"name": "x"}}, "tools[0]"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one(tool: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        tool_use([tool], None, None)
    assert caught.value.param == param
    assert f"'{param}'" in str(caught.value)


@pytest.mark.parametrize("pattern", [r"\(", "[()]", "(a(b))", r"[\])]", "[^])]", ""])
def test_brackets_that_are_no_groups(pattern: str) -> None:
    assert tool_use([custom(format=grammar("regex", pattern))], None, None).is_strict


def test_brackets_without_end_take_no_time() -> None:
    started = time.process_time()
    tool_use([custom(format=grammar("regex", "[" * 1_000_000))], None, None)
    assert time.process_time() - started < 2  # each looked for its end


def test_all_names_are_those_of_one_tool() -> None:
    with pytest.raises(InvalidRequestError, match="only once") as caught:
        tool_use([custom("look"), LOOK], None, None)
    assert caught.value.param == "tools[1].function.name"
