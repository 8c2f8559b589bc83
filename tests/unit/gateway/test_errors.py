"""One shape for every error."""

import orjson
import pytest

from pagoda_gateway import errors


def kinds(root: type[errors.GatewayError]) -> list[type[errors.GatewayError]]:
    return [root, *(found for child in root.__subclasses__() for found in kinds(child))]


@pytest.mark.parametrize("kind", kinds(errors.GatewayError))
def test_body_has_openais_four_fields(kind: type[errors.GatewayError]) -> None:
    body = kind("what", param="field").body()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] is None or isinstance(body["error"]["code"], str)
    assert 400 <= kind.status < 600


def test_retry_after_is_a_whole_number_of_seconds() -> None:
    assert errors.OverloadedError("x", retry_after_seconds=0.2).headers() == {"retry-after": "1"}
    assert errors.OverloadedError("x", retry_after_seconds=2.1).headers() == {"retry-after": "3"}
    assert errors.InternalError("x").headers() == {}


def test_a_401_says_how_a_key_is_sent() -> None:
    assert errors.AuthenticationError("x").headers() == {"www-authenticate": "Bearer"}


@pytest.mark.parametrize("text", ["x", '"', "\u6f22", "\U0001f600"])
def test_body_is_bounded(text: str) -> None:
    body = errors.InvalidRequestError(text * 1_000_000).body()
    assert len(orjson.dumps(body)) < 32_000


def test_problems_are_said_together() -> None:
    problems = errors.Problems()
    problems.raise_all()
    for kind, param in ((errors.ContextLengthError, "a"), (errors.UnsupportedFieldError, "b")):
        with problems:
            raise kind(f"'{param}' is wrong", param=param)
    with pytest.raises(errors.ContextLengthError, match="'a' is wrong; 'b' is wrong") as caught:
        problems.raise_all()
    assert caught.value.param == "a"


def test_so_many_problems_are_said_and_no_more() -> None:
    many = [errors.InvalidRequestError(f"'{i}'") for i in range(5000)]
    assert str(errors.joined(many)).endswith("'63'; and 4936 more problems")


def test_every_kind_is_in_the_tree_of_the_module() -> None:
    for kind in kinds(errors.GatewayError):
        assert kind.__name__ in (errors.__doc__ or "")


def test_shorten_cuts_before_it_prints() -> None:
    assert len(errors.shorten("x" * 10**7)) <= errors.MAX_VALUE_CHARS + 3
    assert len(errors.shorten(list(range(10**6)))) <= errors.MAX_VALUE_CHARS + 3
    assert errors.shorten({"a": 1}) == "{'a': 1}"


def test_what_two_find_is_said_once() -> None:
    same = [errors.InvalidRequestError("'n' is 0", param="n") for _ in range(2)]
    assert str(errors.joined(same)) == "'n' is 0"
    other = errors.InvalidRequestError("'m' is 0")
    assert str(errors.joined([*same, other])) == "'n' is 0; 'm' is 0"
