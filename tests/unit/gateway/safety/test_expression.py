"""What can be looked for in a stream, and what is said of the rest."""

import pytest

from pagoda_gateway.safety.patterns.expression import ExpressionError
from pagoda_gateway.safety.patterns.pattern_set import check_expression


@pytest.mark.parametrize(
    ("source", "least", "most"),
    [
        ("bad", 3, 3),
        (r"a{2,5}", 2, 5),
        (r"(?:ab|c)?d", 1, 3),
        (r"(?P<name>ab){2}", 4, 4),
        (r"\b\d{3}-\d{4}\b", 8, 8),
        (r"[]a\]-][[:alpha:]]", 2, 2),
        (r"\p{Greek}\pL\x{1F600}\x41\101\.", 6, 6),
        (r"a{,2}", 5, 5),  # no count: it stands for itself
        (r"(?:a|)b", 1, 2),
        ("é{1,3}?", 1, 3),
    ],
)
def test_length_of_a_match(source: str, least: int, most: int) -> None:
    expression = check_expression(source)
    assert (expression.min_chars, expression.max_chars) == (least, most)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a*", "'*' at character 2 has no upper bound"),
        ("ab+c", "'+' at character 3 has no upper bound"),
        ("a{3,}", "'{3,}' at character 2 has no upper bound"),
        ("a?", "matches the empty text"),
        (r"\b", "matches the empty text"),
        ("(a", "RE2 cannot compile it: missing )"),
        ("a)", "RE2 cannot compile it"),
        (r"(a)\1", "RE2 cannot compile it: invalid escape sequence"),
        ("(?=a)", "RE2 cannot compile it"),
        ("(?i)a", "ignore_case"),
        (r"\Qa.b\E", "is not supported"),
        ("a{1001}", "RE2 cannot compile it"),
        ("(?:[ab]{100}){10}c", "1001 characters"),
        ("a" * 513, "513 characters; the limit is 512"),
    ],
)
def test_what_cannot_be_looked_for(source: str, said: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        check_expression(source)
    assert said in str(raised.value)


def test_the_longest_literal_compiles() -> None:
    assert check_expression("a" * 512).max_chars == 512
