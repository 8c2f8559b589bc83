"""What templates do, found by rendering; and conversations that are fitted to it."""

import time
from typing import Any

import pytest

from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.templates.fitting import fitted_messages, fitted_tools
from pagoda_gateway.text.templates.habits import TemplateHabits

# Shows all there is, each thing in its own words.
WHOLE = (
    "{% for t in tools or [] %}({{ t.function.name }}){% endfor %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments.city }}>"
    "{% endfor %}{% endfor %}"
)
DEVELOPER = WHOLE + "{# developer #}"
# Refuses a developer by name, as one that has the word may.
NO_DEVELOPER = (
    "{% if messages[0].role == 'developer' %}{{ raise_exception('no developer') }}{% endif %}"
) + WHOLE
# Users and assistants take turns, and there is nobody else: Gemma 2.
TURNS = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] "
    "or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
# One call of an answer and no more: Llama 3.
ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one call') }}{% endif %}{% endif %}{% endfor %}"
) + WHOLE
# Leaves out the other calls: gpt-oss.
FIRST_CALL = WHOLE.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]")
# Writes content alone, of whatever role: Granite 3, DeepSeek's R1.
CONTENT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
# The same, of parts.
PARTS = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no') }}"
    "{% endif %}[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
)
# Puts tools' texts together.
WHOLE_TOOLS = (
    "{% for t in tools or [] %}{{ t.function.name + t.function.description }}"
    "{{ t.function.parameters.properties | tojson }}{% endfor %}"
) + CONTENT
# Asked only where tools are offered: Hermes 3, Command R+.
FOR_TOOLS = "{% for t in tools %}({{ t.function.name }}){% endfor %}" + CONTENT
# Shows the system where it begins, and nowhere else: gpt-oss.
FIRST_SYSTEM = (
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    + WHOLE.replace("in messages %}", "in messages if m.role != 'system' %}")
)
# Users and assistants take turns, calls and results not counted: Mistral.
COUNTS_TURNS = (
    "{% set chat = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
    "{% set ns = namespace(turn=0) %}{% for m in chat %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is not defined) %}"
    "{% if (m.role == 'user') != (ns.turn % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "{% set ns.turn = ns.turn + 1 %}{% elif m.role == 'system' %}{{ raise_exception('no') }}"
    "{% endif %}{% endfor %}"
) + WHOLE.replace("in messages %}", "in chat %}")
THINKS = WHOLE.replace("[{{ m.role }}]", "[{{ m.role }}]{{ m.thinking }}")
# gpt-oss, too.
THINKS_OR_SPEAKS = THINKS.replace(
    "{{ m.thinking }}",
    "{% if m.thinking and m.content and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"
    "{{ m.thinking }}",
)
# Writes a call's id in place of its name: Kimi K2.
IDS = WHOLE.replace("{{ c.function.name }}", "{{ c.id }}").replace(
    "[{{ m.role }}]", "[{{ m.role }}]{{ m.tool_call_id or '' }} "
)
STRANGE = "{{ functions.undefined }}"


@pytest.mark.parametrize(
    ("source", "habits"),
    [
        (WHOLE, {"knows_developer": False}),
        (DEVELOPER, {}),
        (NO_DEVELOPER, {"knows_developer": False}),
        (ONE_CALL, {"knows_developer": False, "one_call": True}),
        (FIRST_CALL, {"knows_developer": False, "one_call": True}),
        (CONTENT, {"knows_developer": False, "shows_tools": False, "writes_calls": False}),
        (
            TURNS,
            {
                "knows_developer": False, "knows_system": False, "shows_tools": False,
                "writes_calls": False, "writes_results": False, "takes_turns": True,
                "hears_after_results": False,
            },
        ),
        (
            WHOLE_TOOLS,
            {"knows_developer": False, "needs_whole_tools": True, "writes_calls": False},
        ),
        (
            FIRST_SYSTEM,
            {"knows_developer": False, "one_system": True, "knows_later_system": False},
        ),
        (
            COUNTS_TURNS,
            {
                "knows_developer": False, "knows_later_system": False, "takes_turns": True,
                "hears_after_results": False, "one_system": True,
            },
        ),
        (THINKS_OR_SPEAKS, {"knows_developer": False, "thinks_or_speaks": True}),
        (THINKS, {"knows_developer": False}),
        (IDS, {"knows_developer": False, "names_by_id": True}),
        (STRANGE, {}),
    ],
)  # fmt: skip
def test_habits(source: str, habits: dict[str, bool]) -> None:
    assert ChatTemplate(source, {}).habits == TemplateHabits(**habits)


def test_a_template_for_tools_is_asked_with_tools(tmp_path: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text(CONTENT)
    further = tmp_path / "additional_chat_templates"
    further.mkdir()
    (further / "tool_use.jinja").write_text(FOR_TOOLS)
    template = ChatTemplate.load(tmp_path, {})
    assert template is not None
    assert (template.habits.shows_tools, template.with_tools.habits.shows_tools) == (False, True)
    assert template.with_tools.habits.knows_system


def test_who_names_a_format_is_not_given_another() -> None:
    template = ChatTemplate(CONTENT, {})
    template.leave_tools_alone()
    assert (template.habits.shows_tools, template.habits.writes_calls) == (True, True)


def call(city: str) -> dict[str, Any]:
    return {
        "id": f"id-{city}",
        "type": "function",
        "function": {"name": "look", "arguments": {"city": city}},
    }


def result(city: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"id-{city}", "content": text}


TOOLS = [{"type": "function", "function": {"name": "look"}}]
SYSTEM = {"role": "system", "content": "Be brief."}
GO = {"role": "user", "content": "go"}
CALLS = {"role": "assistant", "content": "", "tool_calls": [call("Rome"), call("Oslo")]}
RESULTS = [result("Oslo", "rain"), result("Rome", "sun")]  # in an order of their own
ROME = '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>'
OSLO = ROME.replace("Rome", "Oslo")


def shown(source: str, *messages: dict[str, Any], tools: Any = None) -> str:
    return ChatTemplate(source, {}).render(messages, tools=tools)


def test_what_is_shown_whole_stays_as_it_is() -> None:
    messages = [SYSTEM, GO, CALLS, *RESULTS, GO]
    assert fitted_messages(messages, TOOLS, TemplateHabits()) == messages
    assert fitted_tools(TOOLS, TemplateHabits()) == TOOLS


@pytest.mark.parametrize("source", [ONE_CALL, FIRST_CALL])
def test_calls_of_one_answer_come_one_by_one_with_their_results(source: str) -> None:
    said = {**CALLS, "content": "I look.", "reasoning_content": "hm"}
    after = {"role": "assistant", "content": "done"}
    assert shown(source, GO, said, *RESULTS, after) == (
        "[user]go[assistant]I look.<look Rome>[tool]sun"
        "[assistant]<look Oslo>[tool]rain[assistant]done"
    )


def test_results_without_ids_are_in_the_order_of_the_calls() -> None:
    calls = {**CALLS, "tool_calls": [{**c, "id": None} for c in CALLS["tool_calls"]]}
    results = [{"role": "tool", "content": text} for text in ("sun", "rain", "snow")]
    found = shown(ONE_CALL, GO, calls, *results)
    assert found.replace("\n", "").count("[tool]") == 3
    assert found.index("Rome") < found.index("sun") < found.index("snow")


def test_calls_without_results_come_one_by_one_too() -> None:
    assert shown(ONE_CALL, GO, CALLS) == "[user]go[assistant]<look Rome>[assistant]<look Oslo>"


def test_calls_that_are_not_written_are_text() -> None:
    said = {**CALLS, "content": "I look."}
    found = shown(CONTENT, GO, said, *RESULTS)
    assert found == f"[user]go[assistant]I look.\n{ROME}\n{OSLO}[tool]rain[tool]sun"


def test_tools_that_are_not_shown_are_the_systems_text() -> None:
    found = shown(CONTENT, SYSTEM, GO, tools=TOOLS)
    system, user = found.split("[user]")
    assert system.startswith("[system]Be brief.\n\n")
    assert '{"type": "function", "function": {"name": "look"}}' in system
    assert "<tool_call>" in system
    assert user == "go"
    assert shown(CONTENT, GO, tools=TOOLS).startswith("[system]")
    assert "look" not in shown(CONTENT, GO)


def test_all_of_it_where_user_and_assistant_take_turns() -> None:
    found = shown(TURNS, SYSTEM, GO, CALLS, *RESULTS, GO, tools=TOOLS)
    first, rest = found.split("[assistant]")
    answer, last = rest.split("[user]")
    assert first.startswith("[user]Be brief.\n\n")
    assert '"name": "look"' in first
    assert first.endswith("\n\ngo")
    assert answer == f"{ROME}\n{OSLO}"
    said = "<tool_response>\n{}\n</tool_response>\n\n"
    assert last == said.format("rain") + said.format("sun") + "go"


def test_parts_stay_parts() -> None:
    def parts(text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text}]

    messages = [
        {**SYSTEM, "content": parts("Be brief.")},
        {**GO, "content": parts("go")},
        {**CALLS, "content": parts("")},
        {**RESULTS[0], "content": parts("rain")},
    ]
    found = shown(PARTS, *messages)
    assert found == (
        f"[user]Be brief.go[assistant]{ROME}\n{OSLO}[user]<tool_response>\nrain\n</tool_response>"
    )


def test_tools_get_what_the_template_reads() -> None:
    assert shown(WHOLE_TOOLS, GO, tools=TOOLS) == "look{}[user]go"


def test_arguments_as_text_are_an_object_again() -> None:
    function = {"name": "look", "arguments": '{"city": "Rome"}'}
    said = {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": function}]}
    habits = TemplateHabits(writes_calls=False)
    assert fitted_messages([said], None, habits) == [{"role": "assistant", "content": ROME}]


def test_a_system_that_speaks_last_is_the_user() -> None:
    asked = {"role": "assistant", "content": "yes"}
    assert shown(TURNS, GO, asked, SYSTEM) == "[user]go[assistant]yes[user]Be brief."


def test_each_call_has_its_own_result_even_where_some_are_missing() -> None:
    calls = {**CALLS, "tool_calls": [call(city) for city in ("Rome", "Oslo", "Bern")]}
    found = shown(ONE_CALL, GO, calls, result("Bern", "snow"), result("Oslo", "rain"))
    assert found == (
        "[user]go[assistant]<look Rome>[assistant]<look Oslo>[tool]rain"
        "[assistant]<look Bern>[tool]snow"
    )


def test_calls_of_one_id_have_one_result_each_and_strangers_come_last() -> None:
    calls = {**CALLS, "tool_calls": [{**c, "id": "x"} for c in CALLS["tool_calls"]]}
    results = [{**result("Rome", text), "tool_call_id": "x"} for text in ("sun", "rain")]
    found = shown(ONE_CALL, GO, calls, result("Bern", "snow"), *results)
    assert found == (
        "[user]go[assistant]<look Rome>[tool]sun[assistant]<look Oslo>[tool]rain[tool]snow"
    )


def test_ids_name_functions_where_nothing_else_does() -> None:
    found = shown(IDS, GO, CALLS, *RESULTS, CALLS, result("Rome", "snow"), result("Bern", "hail"))
    assert found == (
        "[user] go[assistant] <functions.look:0 Rome><functions.look:1 Oslo>"
        "[tool]functions.look:1 rain[tool]functions.look:0 sun"
        "[assistant] <functions.look:2 Rome><functions.look:3 Oslo>"
        "[tool]functions.look:2 snow[tool]id-Bern hail"
    )
    same = {**CALLS, "tool_calls": [{**c, "id": "x"} for c in CALLS["tool_calls"]]}
    results = [{**result("Rome", text), "tool_call_id": "x"} for text in ("sun", "rain")]
    assert shown(IDS, GO, same, *results).endswith(
        "[tool]functions.look:0 sun[tool]functions.look:1 rain"
    )


def test_systems_that_would_be_lost_are_one_or_speak_with_the_user() -> None:
    later = {"role": "system", "content": "Be kind."}
    answer = {"role": "assistant", "content": "yes"}
    expected = "[system]Be brief.\n\nBe kind.[user]go[assistant]yes[user]Be kind.\n\ngo"
    for source in (FIRST_SYSTEM, COUNTS_TURNS):
        assert shown(source, SYSTEM, later, GO, answer, later, GO) == expected
    assert shown(WHOLE, SYSTEM, later, GO, answer, later, GO).count("[system]") == 3


def test_a_user_who_speaks_after_a_result_is_heard() -> None:
    one = {**CALLS, "tool_calls": CALLS["tool_calls"][:1]}
    found = shown(COUNTS_TURNS, GO, one, result("Rome", "sun"), GO, GO)
    assert found == "[user]go[assistant]<look Rome>[tool]sun\n\ngo\n\ngo"
    assert shown(WHOLE, GO, one, result("Rome", "sun"), GO).endswith("[tool]sun[user]go")


def test_long_histories_take_time_by_their_length() -> None:
    def seconds(size: int) -> float:
        calls = [call(f"c{i}") for i in range(size)]
        results = [result(f"c{i}", "sun") for i in reversed(range(size))]
        talk = [{"role": "user", "content": "go " * 100}] * size
        said = [GO, {**CALLS, "tool_calls": calls}, *results, *talk, *([SYSTEM] * size)]
        begun = time.process_time()
        fitted_messages(
            said,
            None,
            TemplateHabits(
                one_call=True,
                takes_turns=True,
                knows_later_system=False,
                hears_after_results=False,
            ),
        )
        return time.process_time() - begun

    short = min(seconds(500) for _ in range(3))
    assert min(seconds(8000) for _ in range(2)) < 16 * 6 * max(short, 1e-3)
