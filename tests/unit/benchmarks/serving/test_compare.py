"""The comparison from its command line to its files, against a server that answers at once."""

import contextlib
import json
import signal
import subprocess
import sys

import compare
import pytest
from peers.engines import NotInstalledError
from peers.servers import Candidate, Server
from running.models import DEMO_FOLDER
from support.openai_server import openai_server

from pagoda_cli.endpoint import Endpoint


@pytest.fixture
def started(monkeypatch):
    """Servers by key that answer, each with a process of its own; `bodies` has what they got."""
    bodies = {}

    @contextlib.contextmanager
    def start(key):
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        with (
            openai_server() as server,
            subprocess.Popen(command, stdin=subprocess.PIPE) as process,
        ):
            model = "busy" if key == "openvino" else "echo"
            yield Server(key, Endpoint(f"{server.url}/v1", "", model), process.pid)
            process.stdin.close()
            bodies.setdefault(key, []).append(server.bodies)

    def candidate(key, **_):
        if key == "llama-cpp":
            raise NotInstalledError("llama.cpp is skipped: no file")
        return Candidate(key, key, lambda folder: start(key))

    monkeypatch.setattr(compare, "candidate", candidate)
    return bodies


@pytest.fixture(autouse=True)
def handler():
    """Give SIGTERM back to whoever had it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def prompts(bodies):
    return {tuple(body["prompt"]) for body in bodies if isinstance(body["prompt"], list)}


def run(monkeypatch, tmp_path, *arguments):
    command = ["compare.py", "--model", str(DEMO_FOLDER), "--output", str(tmp_path), *arguments]
    monkeypatch.setattr(sys, "argv", command)
    compare.main()


@pytest.mark.slow
def test_same_prompts_in_turns_and_three_files(monkeypatch, tmp_path, started, capsys):
    run(
        monkeypatch, tmp_path, "--repeats", "2", "--fraction", "0.1", "--loads", "c=1", "prefix",
        "--servers", "pagoda-aggregated", "vllm", "llama-cpp",
    )  # fmt: skip
    output = capsys.readouterr()
    assert "llama.cpp is skipped: no file" in output.err
    first, second = map(prompts, started["vllm"])
    assert [first, second] == list(map(prompts, started["pagoda-aggregated"]))
    # What warms up may come again: it shares nothing with what is measured.
    assert {prompt for prompt in first & second if len(prompt) > 256} == set()
    shared = {prompt[:1024] for prompt in first if len(prompt) == 1024 + 64}
    assert len(shared) == 1
    turns = [
        line.split("] ")[1].split(",")[0] for line in output.err.splitlines() if ": up" in line
    ]
    assert turns == ["pagoda-aggregated", "vllm", "vllm", "pagoda-aggregated"]
    (path,) = tmp_path.glob("*-compare.json")
    content = json.loads(path.read_text())
    assert len(content["runs"]) == 2 * 2 * 2
    assert content["problems"] == []
    assert "2 repetition(s), 3 are the least" in content["remarks"]
    ratio = content["sections"]["c=1"]["spreads"]
    assert ratio["pagoda-aggregated.output_tokens_per_second.to_best_peer"]["median"] > 0
    assert "**No measurement: 2 repetition(s)" in path.with_suffix(".md").read_text()
    assert path.with_suffix(".svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_a_server_that_fails_is_a_problem_and_the_others_go_on(monkeypatch, tmp_path, started):
    with pytest.raises(SystemExit) as ended:
        run(
            monkeypatch, tmp_path, "--repeats", "1", "--loads", "c=1",
            "--servers", "openvino", "pagoda-aggregated",
        )  # fmt: skip
    assert ended.value.code == 1
    (path,) = tmp_path.glob("*-compare.json")
    content = json.loads(path.read_text())
    assert "openvino, repetition 1 of 1" in content["problems"][0]
    assert "http_429" in content["problems"][0]
    assert {run["server"] for run in content["runs"]} == {"pagoda-aggregated"}


@pytest.mark.parametrize(
    "arguments", [("--repeats", "0"), ("--fraction", "0"), ("--fraction", "2"), ("--threads", "0")]
)
def test_what_makes_no_sense_is_refused(monkeypatch, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, *arguments)
    assert f"{arguments[0]} {arguments[1]}" in capsys.readouterr().err
