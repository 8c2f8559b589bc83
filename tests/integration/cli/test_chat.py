"""`pagoda chat` against a real HTTP server: one shot, standard input, errors, a conversation."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from support.openai_server import OpenAiServer, openai_server
from typer.testing import CliRunner

from pagoda_cli.chat.command import chat
from pagoda_cli.chat.conversation import ChatError, Conversation
from pagoda_cli.endpoint import Endpoint

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def shared_server() -> Iterator[OpenAiServer]:
    with openai_server() as server:
        yield server


@pytest.fixture
def server(shared_server: OpenAiServer) -> OpenAiServer:
    shared_server.bodies.clear()
    return shared_server


def invoke(*arguments: str, stdin: str | bytes = "") -> Any:
    app = typer.Typer()
    app.command()(chat)
    return CliRunner().invoke(app, list(arguments), input=stdin, env={"PAGODA_HOME": "none"})


def test_message_streams_one_reply(server: OpenAiServer) -> None:
    result = invoke("--url", server.url, "-m", "hello there")
    assert result.exit_code == 0, result.output
    assert result.stdout == "w0 w1 w2 w3 \n"
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello there"}]
    assert server.bodies[0]["model"] == "echo"


def test_standard_input_is_the_message(server: OpenAiServer) -> None:
    result = invoke("--url", server.url, stdin="from a pipe\n")
    assert result.exit_code == 0, result.output
    assert server.bodies[0]["messages"][0]["content"] == "from a pipe"


def test_empty_standard_input_is_refused(server: OpenAiServer) -> None:
    result = invoke("--url", server.url, stdin="\n")
    assert result.exit_code == 2
    assert "nothing to ask" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [((), b"\xff\xfe"), (("-m", "\udcff"), b""), (("--system", "\udcff"), b"x")],
)
def test_what_is_not_utf8_is_said(
    server: OpenAiServer, arguments: tuple[str, ...], stdin: bytes
) -> None:
    result = invoke("--url", server.url, *arguments, stdin=stdin)
    assert result.exit_code == 1
    assert result.stderr == (
        "pagoda chat: what was said is not UTF-8: convert it first, as iconv does\n"
    )
    assert not server.bodies


def test_options_reach_the_request(server: OpenAiServer) -> None:
    flags = ["--system", "Rhyme.", "--temperature", "0.5", "--max-tokens", "2", "--seed", "7"]
    result = invoke("--url", server.url, "-m", "x", *flags)
    assert result.stdout == "w0 w1 \n"
    body = server.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Rhyme."}
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 2, 7)


def test_verbose_prints_usage_apart_from_the_reply(server: OpenAiServer) -> None:
    result = invoke("--url", server.url, "-m", "one two three", "-v")
    assert result.stdout == "w0 w1 w2 w3 \n"
    assert "3 prompt tokens (1 cached), 4 output, finish length" in result.stderr
    assert "request 01TEST" in result.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("busy", "HTTP 429: the queue is full"),
        ("cut", "the stream broke"),
        ("broken", "the engine fell over"),
        ("stuck", "no full reply within 0.3 s"),
    ],
)
def test_failure_is_said_and_exits_1(server: OpenAiServer, model: str, message: str) -> None:
    seconds = "0.3" if model == "stuck" else "60"
    result = invoke("--url", server.url, "--model", model, "-m", "x", "--timeout", seconds)
    assert result.exit_code == 1
    assert message in result.stderr


def test_no_server_names_the_remedy() -> None:
    result = invoke("--url", "http://127.0.0.1:9", "--model", "echo", "-m", "x")
    assert result.exit_code == 1
    assert "pagoda up" in result.stderr


async def say(conversation: Conversation, text: str) -> str:
    return "".join([piece async for piece in conversation.reply(text)])


async def test_history_grows_and_resets(server: OpenAiServer) -> None:
    endpoint = Endpoint(base_url=f"{server.url}/v1", api_key="", model="echo")
    conversation = Conversation(endpoint=endpoint, system="S")
    await say(conversation, "one")
    await say(conversation, "two")
    conversation.reset()
    await say(conversation, "three")
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
    assert roles == [
        ["system", "user"],
        ["system", "user", "assistant", "user"],
        ["system", "user"],
    ]
    assert server.bodies[1]["messages"][2]["content"] == "w0 w1 w2 w3 "


async def test_failed_exchange_is_not_remembered(server: OpenAiServer) -> None:
    endpoint = Endpoint(base_url=f"{server.url}/v1", api_key="", model="broken")
    conversation = Conversation(endpoint=endpoint)
    with pytest.raises(ChatError, match="fell over"):
        await say(conversation, "one")
    assert conversation.messages == []
