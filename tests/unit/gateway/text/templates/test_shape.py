"""What a template's syntax tree says about the messages that it expects."""

import pytest

from pagoda_gateway.text.templates.chat_template import ChatTemplate

LOOP = "{% for m in messages %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    ("source", "text", "parts"),
    [
        ("{{ m.content }}", True, False),
        ("{{ m.content.split('x')[0] }}{{ m.content[0] }}", True, False),
        ("{% for line in m.content.split('x') %}{{ line }}{% endfor %}", True, False),
        ("{% for part in m.content %}{{ part.text }}{% endfor %}", False, True),
        ("{% for p in m['content'] | selectattr('type') %}{{ p }}{% endfor %}", False, True),
        ("{{ m['content'][0]['text'] }}", False, True),
        ("{% set c = m.content %}{% for part in c %}{{ part }}{% endfor %}", False, True),
        (
            "{% set c = m.get('content') %}{% for content in c %}{{ content['text'] }}{% endfor %}",
            False,
            True,
        ),
        (
            "{% set c = m.get('content') %}{% if c is string %}{{ c }}{% else %}"
            "{% for part in c %}{{ part['text'] }}{% endfor %}{% endif %}",
            True,
            True,
        ),
        ("{% for part in m.get('content', []) %}{{ part.text }}{% endfor %}", False, True),
        ("{% for part in m.get('parts') %}{{ part.text }}{% endfor %}", True, False),
        ("{{ m.get('content') }}", True, False),
        ("{% if m.content is not string %}{{ m.content[0].text }}{% endif %}", True, True),
    ],
)
def test_content(source: str, text: bool, parts: bool) -> None:
    shape = ChatTemplate(LOOP + source + END, {}).shape
    assert (shape.content_text, shape.content_parts) == (text, parts)


@pytest.mark.parametrize(
    ("source", "thinking"),
    [
        ("{{ m.content }}{{ thinking }}{{ m.reasoning_content }}", False),
        ("{% if 'thinking' in m %}{{ m.thinking }}{% endif %}", True),
        ("{{ m['thinking'] }}", True),
        ("{{ m.get('thinking') }}", True),
    ],
)
def test_names_of_reasoning(source: str, thinking: bool) -> None:
    assert ChatTemplate(LOOP + source + END, {}).shape.thinking == thinking


@pytest.mark.parametrize(
    ("source", "num_chars"),
    [
        ("{{ c.id }}", None),
        (
            "{% if c.id is not defined or c.id | length != 9 %}"
            "{{ raise_exception('x') }}{% endif %}",
            9,
        ),
        ("{% if c['id'] | length < 9 %}{{ raise_exception('x') }}{% endif %}{{ c.id[-9:] }}", 9),
        ("{% if m.tool_call_id | count == 12 %}{{ m.tool_call_id }}{% endif %}", 12),
        ("{% set i = c.id %}{% if i | length != 9 %}{{ raise_exception('x') }}{% endif %}", 9),
        ("{% if c.get('id') | length != 9 %}{{ raise_exception('x') }}{% endif %}", 9),
        ("{% if c.id | length > 0 %}{{ c.id }}{% endif %}", None),
        ("{% if c.id | length > 1000000000 %}{{ c.id }}{% endif %}", None),
        ("{% if c.name | length != 9 %}{{ c.name }}{% endif %}", None),
    ],
)
def test_length_of_call_ids(source: str, num_chars: int | None) -> None:
    source = "{% for c in messages[0].tool_calls %}" + source + END
    assert ChatTemplate(source, {}).shape.call_id_chars == num_chars


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ c.arguments | tojson }}", False),
        ("{{ '<' + c['function']['arguments'] + '>' }}", True),
        ("{{ c.arguments }}", True),
        ("{{ '<' ~ c.arguments }}", True),
        ("{{ c.get('arguments') }}", True),
        ("{% set a = c.arguments %}{{ '<' + a }}", True),
        ("{% if c.arguments is string %}{{ c.arguments }}{% endif %}", False),
        ("{% if c.arguments is mapping %}{% else %}{{ c.arguments }}{% endif %}", False),
        ("{% for key, value in c.arguments.items() %}{{ key }}{% endfor %}", False),
    ],
)
def test_arguments(source: str, text: bool) -> None:
    source = "{% for c in messages[0].tool_calls %}" + source + END
    assert ChatTemplate(source, {}).shape.arguments_text == text
