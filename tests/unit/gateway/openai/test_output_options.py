"""Options of the output that need no model."""

from typing import Any

import pytest

from pagoda_gateway.errors import InvalidRequestError, UnsupportedFieldError
from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.schemas.generation import GenerationBody


def body(**fields: Any) -> GenerationBody:
    return GenerationBody.model_validate({"model": "tiny", **fields})


@pytest.mark.parametrize("n", [0, -1, 17])
def test_n_within_the_limit(n: int) -> None:
    with pytest.raises(InvalidRequestError, match="1 to 16"):
        output_options(body(n=n), num_logprobs=None, max_n=16)


@pytest.mark.parametrize("stop", [5, ["a", 5], ["a"] * 5, [""], "", ["x" * 1025], {"a": 1}])
def test_bad_stop_strings(stop: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        output_options(body(stop=stop), num_logprobs=None, max_n=1)
    assert caught.value.param == "stop"


def test_stop_may_be_a_string_or_a_list() -> None:
    assert output_options(body(stop="a"), num_logprobs=None, max_n=1).stops == ("a",)
    assert output_options(body(stop=["a", "b"]), num_logprobs=None, max_n=1).stops == ("a", "b")


def test_stream_options_need_a_stream() -> None:
    with pytest.raises(InvalidRequestError, match="stream_options"):
        output_options(body(stream_options={}), num_logprobs=None, max_n=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": 0},
        {"use_beam_search": True},
        {"structured_outputs": {"regex": "a"}},
        {"guided_json": {}},
        {"bad_words": ["x"]},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_fields_that_would_change_the_answer_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedFieldError):
        output_options(body(**fields), num_logprobs=None, max_n=1)


def test_harmless_values_of_refused_fields_pass() -> None:
    fields = {"use_beam_search": False, "response_format": {"type": "text"}}
    assert output_options(body(**fields), num_logprobs=None, max_n=1).num_choices == 1
