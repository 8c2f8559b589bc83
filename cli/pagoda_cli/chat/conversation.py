"""One conversation with a chat model: the history, and replies streamed as they come.

Knows HTTP and the OpenAI chunks. Knows no terminal.
"""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from pagoda_cli.endpoint import Endpoint, EndpointError, error_message, first_model
from pagoda_cli.sse import CutStreamError, SseError, read_chunks

CONNECT_TIMEOUT_SECONDS = 10.0
_MAX_ERROR_BYTES = 4096


class ChatError(Exception):
    """The endpoint did not answer as it should; the message says what to do about it."""


@dataclass(slots=True)
class ChatReply:
    """What is known of the last reply besides its text."""

    text: str = ""
    finish_reason: str = ""
    request_id: str = ""
    completion_id: str = ""
    ttft_seconds: float = 0.0
    e2e_seconds: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Conversation:
    """Messages so far and how the next ones are asked for."""

    endpoint: Endpoint
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # temperature, max_tokens, seed
    timeout_seconds: float = 600.0
    messages: list[dict[str, str]] = field(default_factory=list)
    last: ChatReply = field(default_factory=ChatReply)

    def reset(self) -> None:
        """Forget everything said; the system message stays."""
        self.messages.clear()

    async def reply(self, text: str) -> AsyncGenerator[str]:
        """Say `text` and yield the reply's pieces; both enter the history only if it ends well.

        Raises:
            ChatError: no text, no connection, a refusal, a broken stream or no end within the time
                limit.
        """
        self.last = ChatReply()
        question = {"role": "user", "content": text}
        system = [{"role": "system", "content": self.system}] if self.system else []
        timeout = aiohttp.ClientTimeout(
            total=self.timeout_seconds, sock_connect=CONNECT_TIMEOUT_SECONDS
        )
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                if not self.endpoint.model:
                    self.endpoint = await first_model(session, self.endpoint)
                body = {
                    "model": self.endpoint.model,
                    "messages": [*system, *self.messages, question],
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    **self.options,
                }
                async for piece in self._stream(session, _encoded(body)):
                    yield piece
        except EndpointError as error:
            raise ChatError(str(error)) from error
        except TimeoutError as error:
            raise ChatError(f"no full reply within {self.timeout_seconds:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise ChatError(f"{error}; is the server up? (`pagoda up` starts one)") from error
        except CutStreamError as error:
            raise ChatError("the stream ended before its [DONE]: the reply may be cut") from error
        except (aiohttp.ClientError, OSError, SseError, orjson.JSONDecodeError) as error:
            raise ChatError(f"the stream broke: {type(error).__name__}: {error}") from error
        self.messages += [question, {"role": "assistant", "content": self.last.text}]

    async def _stream(self, session: aiohttp.ClientSession, body: bytes) -> AsyncGenerator[str]:
        start = time.perf_counter()
        reply = self.last
        url = f"{self.endpoint.base_url}/chat/completions"
        async with session.post(url, data=body, headers=self.endpoint.headers) as response:
            reply.request_id = response.headers.get("x-request-id", "")
            if response.status != 200:
                content = await response.content.read(_MAX_ERROR_BYTES)
                raise ChatError(f"HTTP {response.status}: {error_message(content)}")
            async for chunk in read_chunks(response):
                if piece := _take(reply, chunk):
                    reply.ttft_seconds = reply.ttft_seconds or time.perf_counter() - start
                    reply.text += piece
                    yield piece
            reply.e2e_seconds = time.perf_counter() - start


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:  # bytes of a terminal, a file or an argument
        raise ChatError("what was said is not UTF-8: convert it first, as iconv does") from error


def _take(reply: ChatReply, chunk: dict[str, Any]) -> str:
    """Note what a chunk says and return its text.

    Raises:
        ChatError: the chunk is an error.
    """
    if error := chunk.get("error"):
        raise ChatError(str(error.get("message") if isinstance(error, dict) else error))
    reply.completion_id = chunk.get("id") or reply.completion_id
    reply.usage = chunk.get("usage") or reply.usage
    text = ""
    for choice in chunk.get("choices") or ():
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        text += (choice.get("delta") or {}).get("content") or ""
    return text
