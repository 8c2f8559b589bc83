"""What is no number that the administration knows is refused in a line, and nothing is rounded."""

import pytest
import typer
from typer.testing import CliRunner

from pagoda_cli.admin import keys, prices, tiers
from pagoda_cli.admin.numbers import amount_up_to, number_up_to

PRICE = ("set", "m", "--output", "1", "--input")
REFUSED = [
    (keys.app, ("create", "--tenant", "t", "--days"), "give a number from 0 to 36,500"),
    (keys.app, ("rotate", "key-1", "--overlap-hours"), "give a number from 0 to 2,160"),
    (tiers.app, ("create", "t", "--daily-budget"), "is no amount such as 0.25"),
    (tiers.app, ("update", "t", "--monthly-budget"), "is no amount such as 0.25"),
    (prices.app, PRICE, "is no amount such as 0.25"),
]


@pytest.mark.parametrize("number", ["inf", "nan", "much"])
@pytest.mark.parametrize(("app", "words", "message"), REFUSED)
def test_what_is_no_number_is_refused(
    app: object, words: tuple[str, ...], message: str, number: str
) -> None:
    result = CliRunner().invoke(app, [*words, number], env={"COLUMNS": "200"})  # type: ignore[arg-type]
    assert result.exit_code == 2
    assert f"'{number}'" in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize("number", ["1e300", "-1", "100000"])
def test_a_number_out_of_range_is_refused(number: str) -> None:
    with pytest.raises(typer.BadParameter, match="from 0 to 36,500"):
        number_up_to(36_500)(number)


@pytest.mark.parametrize(("app", "words"), [(tiers.app, REFUSED[2][1]), (prices.app, PRICE)])
def test_a_seventh_decimal_is_refused_alike(app: object, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "0.0000015"], env={"COLUMNS": "200"})  # type: ignore[arg-type]
    assert result.exit_code == 2
    assert "with at most 6 decimals" in result.stderr


def test_amounts_are_exact() -> None:
    amount = amount_up_to(9_000_000_000)
    texts = ("0", "0.000001", "2.5", "9000000000", "8999999999.999999")
    assert [amount(text) for text in texts] == [
        0, 1, 2_500_000, 9_000_000_000_000_000, 8_999_999_999_999_999,
    ]  # fmt: skip
    with pytest.raises(typer.BadParameter):
        amount("9000000000.000001")
