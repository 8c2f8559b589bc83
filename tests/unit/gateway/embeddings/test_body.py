"""What an embeddings body means, and how its errors name it."""

from typing import Any

import pytest
from pydantic import ValidationError

from pagoda_gateway.embeddings.schemas import MAX_INPUTS, EmbeddingsBody


def body(**fields: Any) -> EmbeddingsBody:
    return EmbeddingsBody.model_validate({"model": "tiny", **fields})


@pytest.mark.parametrize(
    ("sent", "items"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([5, 6.0], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        (["a"] * MAX_INPUTS, ["a"] * MAX_INPUTS),
    ],
)
def test_forms_of_input(sent: Any, items: list[Any]) -> None:
    assert body(input=sent).input == items


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (None, "'input': this field is required"),
        ("", "'input' is empty"),
        ([], "'input' must be text"),
        (["a", ""], r"'input\[1\]' is empty"),
        ([["a"]], r"'input\[0\]' must be text"),
        (["", 5, "a", [True]], r"\[0\]' is empty; 'input\[1\]' must .*; 'input\[3\]' must "),
        ([""] * 99, r"'input\[15\]' is empty(?!;)"),
        (["a"] * (MAX_INPUTS + 1), "'input' has 2049 inputs; the limit is 2048"),
    ],
)
def test_other_inputs_are_refused(sent: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        body(input=sent)


@pytest.mark.parametrize(
    "fields", [{"dimensions": 0}, {"encoding_format": "hex"}, {"truncate_prompt_tokens": -2}]
)
def test_other_values_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        body(input="a", **fields)
