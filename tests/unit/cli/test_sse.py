"""Server-sent events however the bytes are cut."""

import pytest

from pagoda_cli import sse
from pagoda_cli.sse import SseError, SseParser

STREAM = (
    b": keep-alive\n\n"
    b'data: {"a": 1}\n\n'
    b": keep-alive\n\n: another\n\n"
    b"event: x\nid: 7\ndata: one\ndata:two\n\n"
    b": comment before\ndata: third\n\n"
    b"data: [DONE]\n\n"
)
PAYLOADS = [b'{"a": 1}', b"one\ntwo", b"third", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 1000])
def test_split_anywhere_gives_the_same_events(size: int) -> None:
    parser = SseParser()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [payload for piece in pieces for payload in parser.feed(piece)] == PAYLOADS


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_crlf_line_ends(size: int) -> None:
    stream = STREAM.replace(b"\n", b"\r\n")
    parser = SseParser()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [payload for piece in pieces for payload in parser.feed(piece)] == PAYLOADS


def test_comments_alone_give_nothing() -> None:
    assert SseParser().feed(b": keep-alive\n\n: keep-alive\n\n") == []


def test_unfinished_event_waits_for_its_end() -> None:
    parser = SseParser()
    assert parser.feed(b"data: half") == []
    assert parser.feed(b" and half\n") == []
    assert parser.feed(b"\n") == [b"half and half"]


def test_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10)
    with pytest.raises(SseError, match="the limit is 10"):
        SseParser().feed(b"data: 0123456789")
