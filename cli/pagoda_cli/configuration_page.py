"""Writes what is made of the settings models, or checks that it is up to date.

docs/configuration.md, and deploy/settings.env: the names that Compose hands from its caller's shell
to containers, where compose.yaml does not set them itself.
"""

import argparse
import difflib
import json
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from pagoda_cli.all_settings import all_settings
from pagoda_runtime.configuration.names import variable_names

INTRODUCTION = """# Configuration

<!-- Written by `python -m pagoda_cli.configuration_page --write docs/configuration.md`. -->

Every setting is an environment variable. An unknown `PAGODA_*` name or an unusable value refuses to
start and names the nearest valid one. An empty value counts as unset. Structured values are JSON.
Integers are below 2^63; `~` is the home of the user who starts a process.

`pagoda up` reads all of these, checks them together, and sets the addresses, ports and secrets of
its processes by itself; what you set wins. So does an empty value that means none, where it would
choose one: of `PAGODA_TRACE_DIR`, `PAGODA_GATEWAY_BOOTSTRAP_API_KEY`, `PAGODA_GATEWAY_ADMIN_KEY`,
and the workers' `KVSTORE_ENDPOINT` and `PROCESSOR_TABLE`. Set `PAGODA_NATS_URL` or
`PAGODA_REDIS_URL`, and it uses that server instead of starting one.

Traces go to an OTLP collector if `OTEL_EXPORTER_OTLP_ENDPOINT` (or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) is set, by gRPC alone, and `OTEL_TRACES_EXPORTER` is not
`none`; other `OTEL_*` variables are the OpenTelemetry SDK's.
"""
NAMES_INTRODUCTION = """# Settings that containers get from the shell where Compose is called,
# if they are set there. Written by `make docs`. Secrets, folders and addresses are not here:
# they differ between a shell and a container.
"""
KEPT_OUT = ("url", "user", "host", "port", "endpoint", "worker_id", "model", "models")
BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


def render_page() -> str:
    """Return the page."""
    sections = [_section(owner, model) for owner, model in all_settings().items()]
    return "\n".join([INTRODUCTION, *sections])


def render_names() -> str:
    """Return deploy/settings.env."""
    names = [
        name
        for model in all_settings().values()
        for field, name in variable_names(model).items()
        if not field.endswith(KEPT_OUT)
        and not {SecretStr, Path} & _types(model.model_fields[field].annotation)
    ]
    return NAMES_INTRODUCTION + "".join(f"{name}\n" for name in names)


def _types(annotation: Any) -> set[Any]:
    return {annotation, *get_args(annotation)}


def _section(owner: str, model: type[BaseSettings]) -> str:
    title = "Every process" if owner == "common" else f"`pagoda_{owner}`"
    lines = [f"## {title}", "", "| Variable | Value | Default | Meaning |", "|---|---|---|---|"]
    for field, name in variable_names(model).items():
        info = model.model_fields[field]
        cells = [f"`{name}`", _kind(info), _default(info), (info.description or "").rstrip(".")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _kind(info: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(constraint, name)}"
        for constraint in info.metadata
        for name, sign in BOUNDS
        if getattr(constraint, name, None) is not None
    ]
    return " ".join([_type_name(info.annotation), ", ".join(bounds)]).strip()


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return _type_name(next(kind for kind in get_args(annotation) if kind is not NoneType))
    names = {str: "text", bool: "`true` or `false`", Path: "path", SecretStr: "secret"}
    if annotation in names:
        return names[annotation]
    return annotation.__name__ if isinstance(annotation, type) else "JSON"


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Path)):
        return f"`{json.dumps(value)}`"
    return f"`{value}`"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, metavar="FILE")
    action.add_argument("--check", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    path: Path = arguments.write or arguments.check
    page = render_names() if path.suffix == ".env" else render_page()
    if arguments.write:
        arguments.write.write_text(page)
        return 0
    current = path.read_text() if path.is_file() else ""
    if current == page:
        return 0
    before, after = current.splitlines(), page.splitlines()
    print("\n".join(difflib.unified_diff(before, after, str(path), "the settings", lineterm="")))
    print(f"{path} is stale: run `python -m pagoda_cli.configuration_page --write {path}`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
