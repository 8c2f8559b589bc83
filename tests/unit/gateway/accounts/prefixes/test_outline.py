"""Which message a character of a rendered prompt lies in."""

from pagoda_gateway.accounts.prefixes.outline import MAX_PARTS, Outline, Part, Place

TEXT = (
    '<s>[sys] Be brief.\n{"type": "function", "function": {"name": "add"}}'
    '\n{"type": "function", "function": {"name": "mul"}}</s>'
    "[usr]What is 2 + 2?</s>[ast]<call>add(2, 2)</call></s>[usr]Thanks.</s>[ast]"
)
OUTLINE = Outline.of(
    [
        Part.of("system", " Be brief. "),
        Part.of("user", "What is 2 + 2?"),
        Part.of("assistant", "add", has_calls=True),
        Part.of("user", "Thanks."),
    ],
    ["add", "mul"],
)


def place_of(words: str, outline: Outline = OUTLINE, text: str = TEXT) -> Place:
    return outline.region_at(text, text.index(words)).place


def test_messages_tools_and_what_the_template_adds() -> None:
    assert place_of("<s>") == Place("template")
    assert place_of("brief") == Place("messages[0]", "system")
    assert place_of('"mul"') == Place("tools")
    assert place_of('{"type"') == Place("tools")
    assert place_of("is 2") == Place("messages[1]", "user")
    assert place_of("2, 2") == Place("messages[2]", "assistant")  # its calls are its own
    assert place_of("anks") == Place("messages[3]", "user")
    assert OUTLINE.region_at(TEXT, len(TEXT)).place == Place("template")


def test_words_of_a_message_in_a_tools_description_are_the_tools() -> None:
    text = '[sys]Go.{"name": "a", "description": "Sum up."}{"name": "b"}[usr]Sum up.[ast]'
    outline = Outline.of([Part.of("system", "Go."), Part.of("user", "Sum up.")], ["a", "b"])
    assert place_of("Sum", outline, text) == Place("tools")
    assert outline.region_at(text, text.rindex("Sum")).place == Place("messages[1]", "user")


def test_a_message_that_the_template_drops_has_no_place() -> None:
    outline = Outline.of([Part.of("system", "gone"), Part.of("user", "there it is")])
    assert place_of("it is", outline, "<u>there it is</u>") == Place("messages[1]", "user")


def test_plain_text_is_one_place() -> None:
    assert place_of("b", Outline(name="prompt[2]"), "abc") == Place("prompt[2]")


def test_long_conversations_are_cut() -> None:
    outline = Outline.of((Part.of("user", "x" * 10_000) for _ in range(5000)), ["t"] * 5000)
    assert len(outline.parts) == MAX_PARTS
    assert outline.num_bytes < 100_000
