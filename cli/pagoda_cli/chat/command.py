"""The `pagoda chat` command: talk to a model in the terminal, or ask one thing from a script."""

import asyncio
import io
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from pagoda_cli.chat.conversation import ChatError, Conversation
from pagoda_cli.endpoint import resolve_endpoint

_HELP = "/reset forgets the conversation, /system TEXT sets the system message, /exit leaves"
_EXIT_INTERRUPTED = 130


def chat(
    url: Annotated[
        str, typer.Option(help="Base URL. Default: OPENAI_BASE_URL, then $PAGODA_HOME/env.")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Default: PAGODA_MODEL_NAME, then the first of /models.")
    ] = "",
    api_key: Annotated[
        str, typer.Option(help="Default: OPENAI_API_KEY, then $PAGODA_HOME/env.")
    ] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    message: Annotated[
        str, typer.Option("--message", "-m", help="Ask this and leave; `-` reads standard input.")
    ] = "",
    temperature: Annotated[float | None, typer.Option(min=0.0, max=2.0)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest reply.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same reply.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a whole reply.")] = 600.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print usage, times and the request id.")
    ] = False,
) -> None:
    """Chat with a model, streamed.

    With --message, or when standard input is no terminal, asks once, prints the reply and leaves.
    In a conversation: /reset, /system TEXT, /exit (or Ctrl-D); Ctrl-C stops a reply.
    """
    options = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    conversation = Conversation(
        endpoint=resolve_endpoint(url=url, api_key=api_key, model=model),
        system=system,
        options={name: value for name, value in options.items() if value is not None},
        timeout_seconds=timeout,
    )
    console = Console(highlight=False, soft_wrap=True)
    notes = Console(highlight=False, soft_wrap=True, stderr=True)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # who says what is no text is told so
    if not message and sys.stdin.isatty():
        _converse(conversation, console, notes, is_verbose=verbose)
        return
    text = sys.stdin.read().strip() if message in ("", "-") else message
    if not text:
        typer.echo("pagoda chat: nothing to ask: standard input is empty", err=True)
        raise typer.Exit(2)
    try:
        _ask(conversation, text, console, notes, is_verbose=verbose)
    except ChatError as error:
        typer.echo(f"pagoda chat: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(_EXIT_INTERRUPTED) from None


def _converse(
    conversation: Conversation, console: Console, notes: Console, *, is_verbose: bool
) -> None:
    notes.print(f"{conversation.endpoint.base_url}; {_HELP}", style="dim", markup=False)
    while True:
        try:
            text = console.input("[bold cyan]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        command, _, argument = text.partition(" ")
        if command in ("/exit", "/quit"):
            return
        if command == "/reset":
            conversation.reset()
            notes.print("forgotten", style="dim")
        elif command == "/system":
            conversation.system = argument.strip()
        elif command.startswith("/"):
            notes.print(_HELP, style="dim", markup=False)
        elif text:
            _turn(conversation, text, console, notes, is_verbose=is_verbose)


def _turn(
    conversation: Conversation, text: str, console: Console, notes: Console, *, is_verbose: bool
) -> None:
    """Ask within a conversation: neither an error nor Ctrl-C ends it."""
    try:
        _ask(conversation, text, console, notes, is_verbose=is_verbose)
    except ChatError as error:
        notes.print(f"\n{error}", style="red", markup=False)
    except KeyboardInterrupt:
        notes.print("\nstopped; this exchange is not remembered", style="dim")


def _ask(
    conversation: Conversation, text: str, console: Console, notes: Console, *, is_verbose: bool
) -> None:
    asyncio.run(_print_reply(conversation, text, console))
    if is_verbose:
        notes.print(_summary(conversation), style="dim", markup=False)


async def _print_reply(conversation: Conversation, text: str, console: Console) -> None:
    pieces = conversation.reply(text)
    try:
        async for piece in pieces:
            # `out`, not `print`: the model's text is neither markup nor wrapped.
            console.out(piece, end="", highlight=False)
            console.file.flush()
    finally:
        await pieces.aclose()
    console.print()


def _summary(conversation: Conversation) -> str:
    reply = conversation.last
    usage: dict[str, Any] = reply.usage
    num_output = usage.get("completion_tokens", 0)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    seconds = reply.e2e_seconds - reply.ttft_seconds
    speed = f", {(num_output - 1) / seconds:.1f} tok/s" if num_output > 1 and seconds > 0 else ""
    return (
        f"{usage.get('prompt_tokens', '?')} prompt tokens ({cached} cached), "
        f"{num_output or '?'} output, finish {reply.finish_reason or '?'}, "
        f"TTFT {1e3 * reply.ttft_seconds:.0f} ms{speed}, "
        f"request {reply.request_id or reply.completion_id or '?'}"
    )
