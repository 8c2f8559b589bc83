"""Patterns of ECMA-262 in Rust's words: what changes, what stays, and what neither has."""

import pytest

from pagoda_gateway.text.schemas.patterns import PatternError, rust_pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^[a-z0-9_]+$",
        r"^\+?\([0-9]{3}\)$",
        "^(a|b)*?(?:c){2,3}?$",
        "^(yes|)$",
        r"^[a\-z_\.*$]{2,}[+*/-]$",
        r"^\x41\n\t/$",
        "^[一-鿿] é😀$",
    ],
)
def test_what_is_alike_stays_as_it_is(pattern: str) -> None:
    assert rust_pattern(pattern) == pattern


@pytest.mark.parametrize(
    ("pattern", "translated"),
    [
        (r"\d[\w]", "[0-9][[0-9A-Za-z_]]"),
        ("a.[.]", r"a[^\x00\n\r\x{2028}\x{2029}][.]"),
        ("[^a]", r"[^\x00a]"),
        ("[^-a-c-e-]", r"[^\x00\-a-c\-e-]"),
        ("[^]", r"[\x01-\x{10FFFF}]"),
        (r"[\x00-~]", r"[\x01-~]"),
        (r"[\0a-c]", "[a-c]"),
        ("[a\0-\0b]", "[ab]"),
        (r"[\x01-\x1f\0]", r"[\x{1}-\x{1F}]"),
        (r"[^\0]", r"[^\x00]"),
        ("(?<stop>a)", "(a)"),
        (r"\u0041\u{1F600}\ud83d\ude00\cJ", r"\x{41}\x{1F600}\x{1F600}\x{A}"),
        (r"[\b]", r"[\x{8}]"),
        (r"\<\_\ ", "<_ "),
        (r"\P{L}", r"[\P{L}--\x00]"),
    ],
)
def test_what_differs_is_translated(pattern: str, translated: str) -> None:
    assert rust_pattern(pattern) == translated


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?i:a)", r"\(\?i begins no group"),
        ("(?>a)", r"\(\?> begins no group"),
        ("(?<1>a)", r"\(\?<1> begins no group"),
        ("(?", r"\(\? begins no group"),
        ("(?<!a)b", "look-around"),
        (r"\bcat", "word boundaries"),
        (r"^a\x7f$", "control characters"),
        ("^a\x7f$", "control characters"),
        ("^a\x01$", "control characters"),
        ("^a\x00b$", "control characters"),
        (r"[\x7f]", "only control characters"),
        (r"[\0]", "only control characters"),
        (r"(?<a>b)\k<a>", "backreferences"),
        ("a{,3}", "a { that begins no count"),
        ("^*", r"\* repeats nothing"),
        ("a{2}{3}", r"\{3} repeats nothing"),
        ("(|+)", r"\+ repeats nothing"),
        ("(a", r"a \( is never closed"),
        (r"[a\]", r"a \[ is never closed"),
        ("a\\", "it ends within an escape"),
        ("[a\\", "it ends within an escape"),
        (r"\u{110000}", "is no character"),
        (r"\u12", r"\\u is no escape"),
        (r"[\1]", r"\\1 is no escape"),
        (r"[\B]", r"\\B is no escape"),
        (r"\v", "cannot be"),
        (r"\0", "cannot be"),
        ("[a--b]", "-- inside of"),
        ("[[a]]", r"\[ inside of"),
    ],
)
def test_what_is_no_pattern_says_why(pattern: str, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        rust_pattern(pattern)
