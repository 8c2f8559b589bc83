"""Broken tokenizers: refused with a reason, whatever they raise."""

import json
from pathlib import Path

import pytest
from support.tiny_tokenizer import write_model_folder

from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.text.panics import reported_panics
from pagoda_gateway.text.tokenizer import ModelTokenizer

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


def test_panic_is_a_clean_error() -> None:
    named = pytest.raises(InvalidRequestError, match="tokenizer fails: 'index out of range'")
    with named, reported_panics("the model's tokenizer"):
        raise PanicException("index out of range")


def test_cancellation_is_no_panic() -> None:
    with pytest.raises(KeyboardInterrupt), reported_panics("x"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"model": 5}'])
def test_broken_file_is_named(tmp_path: Path, text: str) -> None:
    folder = write_model_folder(tmp_path)
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer.json cannot be used"):
        ModelTokenizer.load(folder)


def test_id_out_of_proportion_is_refused(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["vocab"]["zz"] = 2**31
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=r"largest token id is 2147483648"):
        ModelTokenizer.load(folder)
