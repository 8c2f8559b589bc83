"""The whole stack serves a folder without weights, if it is told to, and says so."""

import shutil
from pathlib import Path

import pytest
from support.demo import DEMO_MODEL
from support.stack import running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_folder_without_weights_answers(tmp_path: Path) -> None:
    weights = shutil.ignore_patterns("*.safetensors")
    folder = shutil.copytree(DEMO_MODEL, tmp_path / "demo", ignore=weights)
    settings = {"PAGODA_MODEL": str(folder), "PAGODA_LOAD_FORMAT": "dummy"}
    with running_stack(tmp_path / "home", settings) as stack, stack.http() as http:
        body = {
            "model": stack.model,
            "prompt": "Good morrow",
            "max_tokens": 20,
            "temperature": 0,
            "ignore_eos": True,
        }
        answers = [http.post("/v1/completions", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
        assert answers[0].json()["usage"]["completion_tokens"] == 20
        assert answers[0].json()["choices"] == answers[1].json()["choices"]
    logs = [
        path for path in (tmp_path / "home").rglob("*.log") if "load_format" in path.read_text()
    ]
    assert {path.name.split("-")[0].split(".")[0] for path in logs} >= {"prefill", "decode"}
