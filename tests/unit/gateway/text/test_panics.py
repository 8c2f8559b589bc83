import pytest

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.panics import reported_panics

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


def test_panic_is_a_clean_error() -> None:
    named = pytest.raises(InvalidRequestError, match="tokenizer fails: 'index out of range'")
    with named, reported_panics("the model's tokenizer"):
        raise PanicException("index out of range")


def test_cancellation_is_no_panic() -> None:
    with pytest.raises(KeyboardInterrupt), reported_panics("x"):
        raise KeyboardInterrupt
