"""Fields of a model's configuration: what is wrong is named, however long it is."""

from pathlib import Path
from typing import Any

import pytest

from pagoda_engine import CheckpointError
from pagoda_engine.checkpoints.config_reader import MAX_VALUE_CHARS, ConfigReader


def reader(value: Any) -> ConfigReader:
    return ConfigReader(Path("config.json"), {"field": value})


@pytest.mark.parametrize(
    "value", [10**400, -(10**400), 0, -1.0, float("inf"), float("nan"), True, "1", [1.0]]
)
def test_what_is_no_positive_number_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^config.json: field is .*, must be a positive"):
        reader(value).number("field")


def test_whole_numbers_are_numbers() -> None:
    assert reader(10**300).number("field") == 1e300


def test_a_boolean_that_is_null_is_false_and_an_absent_one_the_default() -> None:
    assert reader(None).boolean("field", True) is False
    assert reader(None).boolean("other", True) is True


@pytest.mark.parametrize("read", ["integer", "number", "boolean", "section", "token_ids"])
def test_a_long_value_is_not_shown_whole(read: str) -> None:
    with pytest.raises(CheckpointError, match="field is ") as raised:
        getattr(reader(["x" * 100_000]), read)("field")
    assert len(str(raised.value)) < MAX_VALUE_CHARS + 100
