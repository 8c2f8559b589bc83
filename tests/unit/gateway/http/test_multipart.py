"""Forms are read the same wherever their bytes are cut, and none of them holds much."""

import contextlib
import random

import pytest
from support.seeds import seed_of_tests

from pagoda_gateway.errors import GatewayError, InvalidRequestError, MediaTypeError
from pagoda_gateway.http.batches.multipart import MAX_FIELD_BYTES, MAX_PARTS, FormParser

TYPE = "multipart/form-data; boundary=edge"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    shown = f'; filename="{filename}"' if filename is not None else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{shown}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = b"--edge--\r\n"


def read(body: bytes) -> FormParser:
    parser = FormParser(TYPE)
    parser.feed(body)
    parser.end()
    return parser


async def test_any_cuts_give_the_same_form() -> None:
    rng = random.Random(seed_of_tests())
    for _ in range(100):
        data = b"".join(rng.choices([b"\r\n", b"--edge", b"--", b"x", b"\r", b"\n"], k=30))
        while b"\r\n--edge" in data:  # that would be the end
            data = data.replace(b"\r\n--edge", b"")
        form = part("file", data, "in.jsonl") + part("purpose", b"batch") + END
        cuts = sorted(rng.randrange(len(form)) for _ in range(10))
        parser = FormParser(TYPE)
        found = b""
        for start, end in zip([0, *cuts], [*cuts, len(form)], strict=True):
            found += b"".join(parser.feed(form[start:end]))
        parser.end()
        assert found == data
        assert (parser.filename, parser.fields) == ("in.jsonl", {"purpose": "batch"})


@pytest.mark.parametrize("header", ["", "application/json", "multipart/form-data", "multipart/"])
def test_what_is_no_form(header: str) -> None:
    with pytest.raises(MediaTypeError):
        FormParser(header)


def test_a_boundary_that_is_too_long_is_the_clients_mistake() -> None:
    with pytest.raises(InvalidRequestError, match="30000 exceeds maximum of 256") as refusal:
        FormParser("multipart/form-data; boundary=" + "B" * 30_000)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"nonsense", "cannot be read"),
        (part("purpose", b"batch") + END, "'file'"),
        (part("file", b"", "a") + part("file", b"", "b") + END, "twice"),
        (part("purpose", b"x" * (MAX_FIELD_BYTES + 1)) + END, str(MAX_FIELD_BYTES)),
        (part("a", b"b") * (MAX_PARTS + 1) + END, str(MAX_PARTS)),
        (part("file", b"abc", "a"), "last boundary"),
        (b"--edge\r\n" + b"a" * 100_000, "cannot be read"),
    ],
)
def test_forms_that_are_refused(body: bytes, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        read(body)


def test_names_are_cut_and_never_empty() -> None:
    for sent, shown in (("x" * 300, "x" * 255), ("", "upload.jsonl"), ("a\x00b", "ab")):
        parser = FormParser(TYPE)
        parser.feed(part("file", b"1", sent) + END)
        assert parser.filename == shown


def test_random_bytes_are_refused_in_our_words() -> None:
    rng = random.Random(seed_of_tests())
    form = part("file", b"abc", "a") + part("purpose", b"batch") + END
    for _ in range(500):
        broken = bytearray(form)
        for _ in range(rng.randrange(1, 6)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        with contextlib.suppress(GatewayError):
            read(bytes(broken))
