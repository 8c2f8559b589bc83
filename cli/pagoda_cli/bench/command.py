"""The `pagoda bench` command: flags, progress bar, Ctrl-C. What it measures is in `runner`."""

import asyncio
import signal
import sys
import time

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagoda_cli.bench import options
from pagoda_cli.bench.config import BenchConfig
from pagoda_cli.bench.errors import BenchError
from pagoda_cli.bench.provenance import provenance
from pagoda_cli.bench.report import document, print_results, write_json
from pagoda_cli.bench.results import Results, Slo
from pagoda_cli.bench.runner import BenchRun
from pagoda_cli.bench.workload import LengthRange
from pagoda_cli.endpoint import resolve_endpoint

_REFRESH_SECONDS = 0.25
_EXIT_INTERRUPTED = 130


# What `pagoda bench --help` says; paragraphs, because the help keeps line breaks as they stand.
_HELP = (
    "Measure any OpenAI-compatible endpoint.\n\n"
    "What the numbers mean:\n\n"
    "TTFT: from when the request was due (open loop) or sent (closed loop) to the first event "
    "with text. Queueing, in this client too, is inside it.\n\n"
    "E2E: the same start to the end of the stream.\n\n"
    "TPOT: (E2E - TTFT) / (output tokens - 1), per request.\n\n"
    "ITL: each gap between events with text. A server may put several tokens into an event; "
    "tokens per event is printed.\n\n"
    "tokens/s: output (or all) tokens of complete requests over the whole time, the last "
    "stragglers included. Tokens of failed requests count nowhere.\n\n"
    "Output tokens: the server's usage if it sends one, else counted with --tokenizer, else "
    "events; the JSON says which.\n\n"
    "Failures: refused (http_429, http_503, ...), connect, timeout, disconnected, "
    "error_event, bad_stream, empty, client_limit. Latencies cover complete requests only, so "
    "they are never shown without the failed and shed share; goodput counts failures as "
    "misses.\n\n"
    "No number is smoothed, trimmed or subtracted from. Compare only runs of one machine, one "
    "hour.\n\n"
    "Exit status: 0, 1 if no request succeeded or the run could not start, 130 after Ctrl-C "
    "(which prints what it has)."
)


def bench(
    url: options.Url = "",
    model: options.Model = "",
    api_key: options.ApiKey = "",
    api: options.Api = options.ApiName.completions,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    trace: options.Trace = None,
    trace_speed: options.TraceSpeed = 1.0,
    trace_scale: options.TraceScale = 1.0,
    requests: options.Requests = None,
    duration: options.Duration = None,
    prompt_tokens: options.PromptTokens = "256",
    output_tokens: options.OutputTokens = "64",
    prefix_tokens: options.PrefixTokens = 0,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    send_ids: options.SendIds = False,
    tokenizer: options.Tokenizer = None,
    slo_ttft_ms: options.SloTtftMs = None,
    slo_tpot_ms: options.SloTpotMs = None,
    timeout: options.Timeout = 600.0,
    max_in_flight: options.MaxInFlight = 1024,
    warmup: options.Warmup = 2,
    no_keep_alive: options.NoKeepAlive = False,
    json_file: options.JsonFile = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure any OpenAI-compatible endpoint."""
    console = Console()
    paced = concurrency is not None or rate is not None or trace is not None
    is_endless = requests is None and duration is None and trace is None
    try:
        config = BenchConfig(
            api=api.value,
            concurrency=concurrency if paced else 1,
            rate=rate,
            trace=trace,
            trace_speed=trace_speed,
            trace_scale=trace_scale,
            num_requests=options.DEFAULT_NUM_REQUESTS if is_endless else requests,
            duration_seconds=duration,
            prompt_tokens=LengthRange.parse(prompt_tokens, name="--prompt-tokens"),
            output_tokens=LengthRange.parse(output_tokens, name="--output-tokens"),
            prefix_tokens=prefix_tokens,
            ignore_eos=ignore_eos,
            temperature=temperature,
            seed=seed,
            send_ids=send_ids,
            tokenizer=tokenizer,
            timeout_seconds=timeout,
            max_in_flight=max_in_flight,
            num_warmup=warmup,
            keep_alive=not no_keep_alive,
            slo=Slo(slo_ttft_ms, slo_tpot_ms),
        )
        endpoint = resolve_endpoint(url=url, api_key=api_key, model=model)
        run = BenchRun(config, endpoint, on_note=lambda note: console.print(note, style="yellow"))
        results = uvloop.run(_watched(run, console, is_quiet=quiet))
    except BenchError as error:
        typer.echo(f"pagoda bench: {error}", err=True)
        raise typer.Exit(1) from None
    if not quiet:
        print_results(console, results)
    if json_file is not None:
        content = document(config, run.endpoint, results, provenance(_command_line()))
        write_json(json_file, content)
    if run.stop.is_set():
        raise typer.Exit(_EXIT_INTERRUPTED)
    if not results.num_ok:
        raise typer.Exit(1)


bench.__doc__ = _HELP


async def _watched(run: BenchRun, console: Console, *, is_quiet: bool) -> Results:
    """Run with a progress bar; the first Ctrl-C ends the run, the second the process."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        run.stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
        disable=is_quiet or not console.is_terminal,
    )
    with progress:
        ticker = asyncio.create_task(_tick(run, progress))
        try:
            return await run.run()
        finally:
            ticker.cancel()


async def _tick(run: BenchRun, progress: Progress) -> None:
    """Redraw a few times a second, whatever the number of events."""
    task_id = progress.add_task("warming up", total=run.config.num_requests)
    while not progress.disable:
        await asyncio.sleep(_REFRESH_SECONDS)
        recorder = run.recorder
        if run.started_at is None:
            continue
        tokens_per_second = recorder.num_output_tokens / (time.perf_counter() - run.started_at)
        progress.update(
            task_id,
            completed=recorder.num_ok + recorder.num_failed,
            description=f"{run.num_in_flight} in flight, {tokens_per_second:.0f} tok/s, "
            f"{recorder.num_failed} failed",
            refresh=True,
        )


def _command_line() -> list[str]:
    """Return the command without the key."""
    arguments = ["pagoda", *sys.argv[1:]]
    for index, argument in enumerate(arguments):
        if argument.startswith("--api-key="):
            arguments[index] = "--api-key=***"
        elif arguments[index - 1] == "--api-key":
            arguments[index] = "***"
    return arguments
