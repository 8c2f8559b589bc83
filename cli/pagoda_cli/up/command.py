"""`pagoda up`: the whole system on this machine, in the foreground."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping

import typer

from pagoda_cli.up.errors import NotReadyError, StackError
from pagoda_cli.up.home import OTHERS, load_secrets, lock_home, write_environment
from pagoda_cli.up.memory import scarce_memory
from pagoda_cli.up.plan import Plan, make_plan
from pagoda_cli.up.ports import reachable, require_free
from pagoda_cli.up.readiness import waiting_for
from pagoda_cli.up.stack import Stack
from pagoda_cli.up.supervisor import Supervisor, pause
from pagoda_cli.up.terminal import put, say
from pagoda_cli.up.topology import ROLES
from pagoda_runtime.errors import ModelFolderError, SettingsError, StartError

READY_SECONDS = 600.0
EXIT_FAILURE, EXIT_SETTINGS, EXIT_INTERRUPTED = 1, 2, 130


def up() -> None:
    """Start NATS, Redis and every service; print one ready line; stop everything on Ctrl-C.

    Settings: PAGODA_HTTP_PORT (8000), PAGODA_MODEL (a folder; the demo model), PAGODA_HOME
    (.pagoda), PAGODA_TOPOLOGY (disaggregated | aggregated | prefill=P,decode=D), and those of every
    service; docs/configuration.md lists them. Logs are in $PAGODA_HOME/logs.
    """
    os.umask(OTHERS)  # our processes', too: whatever any of them makes is the user's alone
    raise typer.Exit(run_up(os.environ))


def run_up(environ: Mapping[str, str]) -> int:
    """Run until stopped and return the exit code."""
    try:
        plan = make_plan(environ)
        require_free(plan.http_port, plan.http_host)
        with (
            lock_home(plan.home),
            contextlib.closing(Stack(plan, load_secrets(plan.home), environ)) as stack,
        ):
            say(stack.disk.explanation)
            if warning := scarce_memory(plan.topology):
                say(warning)
            return asyncio.run(_run(plan, stack))
    except (SettingsError, ModelFolderError) as error:
        say(str(error))
        return EXIT_SETTINGS
    except (StackError, StartError, OSError) as error:
        say(str(error))
        return EXIT_FAILURE


async def _run(plan: Plan, stack: Stack) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    supervisor = Supervisor(stack.specs(), report=say)
    try:
        supervisor.start()
        if not await _until_ready(supervisor, stop):
            return EXIT_INTERRUPTED
        for role in ROLES:
            write_environment(plan.home / f"{role}.env", stack.joining_environment(role))
        _announce(plan, stack)
        await supervisor.run(stop)
        return 0
    finally:
        await supervisor.stop(hurry)


async def _until_ready(supervisor: Supervisor, stop: asyncio.Event) -> bool:
    """Return True once every service is ready, False if told to stop before."""
    addresses = {
        name: f"{reachable(child.spec.ready_host)}:{child.spec.ready_port}"
        for name, child in supervisor.children.items()
        if child.spec.ready_port is not None
    }
    deadline = time.monotonic() + READY_SECONDS
    while not stop.is_set():
        supervisor.check_start()
        waiting = await waiting_for(addresses)
        _show_progress(waiting)
        if not waiting:
            return True
        if time.monotonic() > deadline:
            raise NotReadyError(READY_SECONDS, ", ".join(waiting))
        await pause(stop)
    return False


def _announce(plan: Plan, stack: Stack) -> None:
    url, api_key = f"http://{reachable(plan.http_host)}:{plan.http_port}", stack.api_key
    address = {"OPENAI_BASE_URL": f"{url}/v1"}
    key = {"OPENAI_API_KEY": api_key} if api_key else {}
    write_environment(plan.home / "env", address | key | {"PAGODA_MODEL_NAME": plan.model_name})
    # Apart: whoever sources the other file gives no program the right to make keys.
    admin_env = plan.home / "admin.env"
    if stack.admin_key:
        write_environment(admin_env, {**address, "PAGODA_GATEWAY_ADMIN_KEY": stack.admin_key})
    else:
        admin_env.unlink(missing_ok=True)
    body = {
        "model": plan.model_name,
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 64,
        "stream": True,
    }
    put(
        f"pagoda ready {url}\n"
        f"curl -sSN {url}/v1/chat/completions -H {_authorization(api_key)} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}\n",
        sys.stdout,
    )


def _authorization(api_key: str) -> str:
    """Return the header as a word for the shell; without a key of ours it is the user's own."""
    if not api_key:
        return '"Authorization: Bearer $OPENAI_API_KEY"'
    return shlex.quote(f"Authorization: Bearer {api_key}")


def _show_progress(waiting: list[str]) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        # Backwards: gateways come first, and wait for the others, which say what for.
        text = f"waiting for {', '.join(reversed(waiting))}" if waiting else ""
        text = text[: shutil.get_terminal_size().columns - 1]
        put(f"\r\033[K{text}", sys.stderr)
