"""The flags of `pagoda bench`, one alias each."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_NUM_REQUESTS = 32


class ApiName(StrEnum):
    """Which endpoint is driven."""

    chat = "chat"
    completions = "completions"


Url = Annotated[
    str, typer.Option(help="Base URL. Default: OPENAI_BASE_URL, then $PAGODA_HOME/env.")
]
Model = Annotated[str, typer.Option(help="Default: PAGODA_MODEL_NAME, then the first of /models.")]
ApiKey = Annotated[str, typer.Option(help="Default: OPENAI_API_KEY, then $PAGODA_HOME/env.")]
Api = Annotated[ApiName, typer.Option(help="Chat messages or plain prompts.")]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        "-c",
        min=1,
        help="Closed loop: requests kept in flight. Default: 1 if no other pace is given.",
    ),
]
Rate = Annotated[
    float | None, typer.Option(min=0.001, help="Open loop: Poisson arrivals per second.")
]
Trace = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Open loop: replay a Mooncake JSONL or Azure CSV trace (.zst too).",
    ),
]
TraceSpeed = Annotated[float, typer.Option(min=0.001, help="Replay this many times faster.")]
TraceScale = Annotated[
    float,
    typer.Option(min=0.0001, help="Multiply the trace's lengths, e.g. to fit a small context."),
]
Requests = Annotated[
    int | None,
    typer.Option(
        "--requests",
        "-n",
        "--limit",
        min=1,
        help=f"Default: {DEFAULT_NUM_REQUESTS}, all of the trace, or what --duration allows.",
    ),
]
Duration = Annotated[
    float | None, typer.Option(min=0.1, help="Start no request after this many seconds.")
]
PromptTokens = Annotated[str, typer.Option(help="Unique prompt tokens: N or LOW-HIGH.")]
OutputTokens = Annotated[str, typer.Option(help="max_tokens: N or LOW-HIGH.")]
PrefixTokens = Annotated[
    int, typer.Option(min=0, help="Tokens of one prefix in front of every prompt.")
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos", help="Ask for exactly max_tokens (an extension most servers know)."
    ),
]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="0 = greedy.")]
Seed = Annotated[int, typer.Option(help="Of prompts, lengths and arrivals.")]
SendIds = Annotated[
    bool,
    typer.Option(
        "--send-ids", help="Send token ids (completions only): no tokenising on the server."
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="tokenizer.json that makes and checks prompts. Default: the server's /tokenize.",
    ),
]
SloTtftMs = Annotated[
    float | None, typer.Option(min=0.0, help="Report goodput: TTFT at most this.")
]
SloTpotMs = Annotated[
    float | None, typer.Option(min=0.0, help="Report goodput: TPOT at most this.")
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0.1, help="Deadline of each request in seconds; past it the request has failed."
    ),
]
MaxInFlight = Annotated[
    int,
    typer.Option(
        min=1,
        help="Open loop: past this an arrival is a client_limit failure, not a wait.",
    ),
]
Warmup = Annotated[
    int,
    typer.Option(
        min=0, help="Requests sent first and not counted; they never hold the shared prefix."
    ),
]
NoKeepAlive = Annotated[
    bool,
    typer.Option(
        "--no-keep-alive",
        help="A connection for each request, for servers that close idle ones under load.",
    ),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", dir_okay=False, help="Write results, machine, command, seed and versions here."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")]
