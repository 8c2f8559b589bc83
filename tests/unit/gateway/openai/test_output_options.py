"""Options of the output that need no model."""

from typing import Any

import pytest

from pagoda_gateway.openai.output_options import output_options
from pagoda_gateway.openai.schemas.generation import GenerationBody


def body(**fields: Any) -> GenerationBody:
    return GenerationBody.model_validate({"model": "tiny", **fields})


@pytest.mark.parametrize("n", [0, -1, 17])
def test_n_within_the_limit(n: int) -> None:
    with pytest.raises(ValueError, match="1 to 16"):
        GenerationBody.model_validate({"model": "tiny", "n": n}, context={"max_n": 16})


@pytest.mark.parametrize(
    ("stop", "stops"), [(None, ()), ([], ()), ("a", ("a",)), (["a", "b"], ("a", "b"))]
)
def test_stop_may_be_a_string_or_a_list(stop: object, stops: tuple[str, ...]) -> None:
    assert output_options(body(stop=stop), num_logprobs=None).stops == stops
