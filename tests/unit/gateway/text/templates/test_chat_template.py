"""Templates render as in Hugging Face, in a sandbox."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.tiny_tokenizer import write_model_folder
from transformers import PreTrainedTokenizerFast

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.errors import ModelFolderError

CHAT = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": " What? "},
    {"role": "assistant", "content": "That."},
]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "é & <x>"}}]
LOOPING = (
    "{%- for m in messages %}\n  {%- if loop.index > 2 %}{% break %}{% endif %}\n"
    "{% generation %}[{{ m.role }}]{{ m.content | trim }}{% endgeneration %}\n{%- endfor %}"
    "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ eos_token }}"
)


@pytest.mark.parametrize("source", [None, LOOPING])
@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}, {"add_generation_prompt": True}])
def test_renders_as_the_reference(
    tmp_path: Path, source: str | None, options: dict[str, Any]
) -> None:
    folder = write_model_folder(tmp_path, **({"chat_template": source} if source else {}))
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    template = ChatTemplate.load(folder, ModelTokenizer.load(folder).special_tokens)
    assert template is not None
    wanted = reference.apply_chat_template(CHAT, tokenize=False, **options)
    assert template.render(CHAT, **{"add_generation_prompt": False, **options}) == wanted


@pytest.mark.parametrize(
    "config",
    [
        {"extra_special_tokens": {"eot_token": "<eot>", "image": "<img>"}},
        {"eot_token": "<eot>", "model_specific_special_tokens": {"eot_token": "<eot>"}},
        {"eot_token": "<eot>", "extra_special_tokens": ["<img>"]},
        {"additional_special_tokens": ["<eot>"], "add_eot_token": True},
    ],
    ids=str,
)
def test_named_special_tokens_as_the_reference(tmp_path: Path, config: dict[str, Any]) -> None:
    source = "{{ bos_token }}|{{ eot_token }}|{{ image }}|{{ add_eot_token }}"
    folder = write_model_folder(tmp_path, chat_template=source, **config)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    template = ChatTemplate.load(folder, ModelTokenizer.load(folder).special_tokens)
    assert template is not None
    assert template.render(CHAT) == reference.apply_chat_template(CHAT, tokenize=False)


def test_continue_final_message_as_the_reference(model_folder: Path) -> None:
    reference = PreTrainedTokenizerFast.from_pretrained(model_folder)
    template = ChatTemplate.load(model_folder, ModelTokenizer.load(model_folder).special_tokens)
    assert template is not None
    wanted = reference.apply_chat_template(CHAT, tokenize=False, continue_final_message=True)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(CHAT, **options) == wanted
    assert wanted.endswith("That.")


def test_continue_final_message_made_of_parts() -> None:
    template = ChatTemplate("{% for p in messages[0].content %}{{ p.text }}{% endfor %}!", {})
    parts = [{"type": "text", "text": text} for text in ("a", "b")]
    chat = [{"role": "assistant", "content": parts}]
    assert template.render(chat, continue_final_message=True) == "ab"
    assert parts[1]["text"] == "b"


def test_jinja_file_wins(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("from the file")
    template = ChatTemplate.load(folder, {})
    assert template is not None
    assert template.render(CHAT) == "from the file"


def test_model_without_template(tmp_path: Path) -> None:
    assert ChatTemplate.load(write_model_folder(tmp_path, chat_template=None), {}) is None


NAMED = [
    {"name": "default", "template": "plain"},
    {"name": "tool_use", "template": "with tools"},
    {"name": "rag", "template": "with documents"},
]


@pytest.mark.parametrize("place", ["list", "file"])
def test_tools_have_a_template_of_their_own_where_there_is_one(tmp_path: Path, place: str) -> None:
    sent: Any = NAMED if place == "list" else "plain"
    folder = write_model_folder(tmp_path, chat_template=sent)
    if place == "file":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    template = ChatTemplate.load(folder, {})
    assert template is not None
    assert (template.render(CHAT), template.with_tools.render(CHAT)) == ("plain", "with tools")


def test_otherwise_one_template_is_for_all(tmp_path: Path) -> None:
    template = ChatTemplate.load(write_model_folder(tmp_path, chat_template=NAMED[:1]), {})
    assert template is not None
    assert template.with_tools is template
    without = write_model_folder(tmp_path / "without", chat_template=NAMED[1:])
    assert ChatTemplate.load(without, {}) is None


def test_a_processors_template_is_taken_where_the_tokenizer_has_none(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, chat_template=None)
    path = folder / "chat_template.json"
    path.write_text('{"chat_template": "of the processor"}')
    template = ChatTemplate.load(folder, {})
    assert template is not None
    assert template.render(CHAT) == "of the processor"
    for wrong in ("[]", "{}", "{", '{"chat_template": 5}'):
        path.write_text(wrong)
        with pytest.raises(ModelFolderError, match="chat_template"):
            ChatTemplate.load(folder, {})


@pytest.mark.parametrize("wrong", [[{"name": "default"}], [{"name": "default", "template": 5}], 5])
def test_a_template_that_is_none_is_named(tmp_path: Path, wrong: Any) -> None:
    folder = write_model_folder(tmp_path, chat_template=wrong)
    with pytest.raises(ModelFolderError, match=r"tokenizer_config\.json: chat_template"):
        ChatTemplate.load(folder, {})


def test_raise_exception_names_the_reason() -> None:
    template = ChatTemplate("{{ raise_exception('only two roles') }}", {})
    with pytest.raises(InvalidRequestError, match="only two roles"):
        template.render(CHAT)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ missing.field }}",
    ],
)
def test_sandbox_refuses(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(CHAT)


def test_variables_and_date() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%Y') }} {{ mood }} {{ messages | length }}",
        {},
        now=lambda: datetime(2031, 1, 1),
    )
    # A client's variables never replace the messages.
    assert template.render(CHAT, variables={"mood": "calm", "messages": []}) == "2031 calm 3"


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**99**9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'a'.ljust(10 * 999999999) }}",
        "{% set t = 'a' * 10**6 %}{% for a in range(99) %}{{ t }}{% endfor %}",
        "{{ 1 / 0 }}",
    ],
)
def test_template_without_end_is_a_clean_error(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagoda_gateway.text.templates.sandbox.MAX_STEPS", 20_000)
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source, {}).render(CHAT)


def test_loops_keep_what_they_know_of_themselves() -> None:
    source = "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}"
    assert ChatTemplate(source, {}).render(CHAT) == "1/3False 2/3False 3/3True "
