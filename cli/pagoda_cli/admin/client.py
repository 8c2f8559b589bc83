"""Speaks to the administration of a gateway, /admin."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import orjson
import typer

from pagoda_cli.endpoint import error_message, resolve_administration

ANSWER_SECONDS = 30.0
PAGE = 1000
MAX_BYTES = 64 << 20
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""No proxy that the environment names is sent the administration's key; nor has chat one."""

Url = Annotated[
    str, typer.Option(help="Base URL. Default: OPENAI_BASE_URL, then $PAGODA_HOME/env.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what the gateway answers.")]


class AdminClient:
    """Asks one gateway; ends the command with a line on stderr where that fails."""

    def __init__(self, url: str) -> None:
        self._endpoint = resolve_administration(url=url)
        if not self._endpoint.api_key:
            _fail(
                f"no key of the administration of {self._endpoint.root_url}: set "
                "PAGODA_GATEWAY_ADMIN_KEY to the one that the gateway was started with; if that "
                "was started with none, it has no administration"
            )

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer to a request for /admin/<path>."""
        url = f"{self._endpoint.root_url}/admin/{path}"
        content = None if body is None else orjson.dumps(body)
        request = urllib.request.Request(
            url, data=content, headers=self._endpoint.headers, method=method
        )
        try:
            with _OPENER.open(request, timeout=ANSWER_SECONDS) as answer:
                found: dict[str, Any] = orjson.loads(answer.read(MAX_BYTES))
                return found
        except urllib.error.HTTPError as error:
            with error:
                message = error_message(error.read(MAX_BYTES))
            if error.code == 404 and message.startswith("Not Found"):
                message += "; was the gateway started with PAGODA_GATEWAY_ADMIN_KEY?"
            _fail(f"HTTP {error.code}: {message}")
        except http.client.HTTPException as error:
            _fail(f"{url}: no HTTP server answers there ({type(error).__name__})")
        except (OSError, ValueError) as error:
            _fail(f"{url}: {getattr(error, 'reason', error)}")

    def each(self, noun: str, *, id_name: str = "id", **filters: str) -> Iterator[dict[str, Any]]:
        """Yield what /admin/<noun> lists, page by page; each has its id under `id_name`."""
        query = {"limit": PAGE, **{name: value for name, value in filters.items() if value}}
        while True:
            answer = self.ask("GET", f"{noun}?{urllib.parse.urlencode(query)}")
            yield from answer["data"]
            if not answer["has_more"]:
                return
            query["after"] = answer["data"][-1][id_name]


def path_of(nouns: str, name: str) -> str:
    """Return the path of one of the `nouns`; ends the command for a name that no path can hold."""
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        _fail(f"there is no {nouns.removesuffix('s')} {name!r}")
    return f"{nouns}/{urllib.parse.quote(name, safe='')}"


def as_json(value: object, *, indented: bool = True) -> str:
    """Return what --json prints."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indented else 0).decode()


def _fail(message: str) -> NoReturn:
    typer.echo(f"pagoda: {message}", err=True)
    raise typer.Exit(1)
