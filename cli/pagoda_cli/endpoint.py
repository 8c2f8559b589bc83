"""Which endpoint a command talks to: flags, then the environment, then `$PAGODA_HOME/env`.

Knows addresses, keys and model names. Knows nothing of generation requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import orjson
from dotenv import dotenv_values
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from pagoda_cli.errors import CommandError

DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"


class EndpointError(CommandError):
    """There is no such endpoint, or it does not say what was asked of it; says what to do."""


class EndpointSettings(BaseSettings):
    """What the environment says about the endpoint; names are OpenAI's where OpenAI has one."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)

    openai_base_url: str = ""
    openai_api_key: SecretStr = SecretStr("")
    pagoda_gateway_admin_key: SecretStr = SecretStr("")
    pagoda_model_name: str = ""
    pagoda_home: Path = Path(".pagoda")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to send requests, with which key, for which model (empty: ask `/models`)."""

    base_url: str
    api_key: str = field(repr=False)
    model: str

    @property
    def root_url(self) -> str:
        """The address without `/v1`, where `/tokenize` and `/metrics` live."""
        return self.base_url.removesuffix("/v1")

    @property
    def headers(self) -> dict[str, str]:
        """Headers every request carries."""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers


def resolve_home(home: Path | None = None) -> Path:
    """Return the folder of run-time data: the flag, or PAGODA_HOME, or `.pagoda`."""
    return (home or EndpointSettings().pagoda_home).expanduser()


def resolve_endpoint(
    *, url: str = "", api_key: str = "", model: str = "", home: Path | None = None
) -> Endpoint:
    """Return the endpoint to use; arguments win over the environment, which wins over the file.

    The key and model that `pagoda up` wrote to `<home>/env` are used only for the address in the
    same file, so that a `--url` elsewhere is never sent this stack's key.

    Raises:
        EndpointError: the address is none, or no server can know the key.
    """
    settings = EndpointSettings()
    written = _read_env_file(resolve_home(home) / "env")
    written_url = _normal_url(written.get("OPENAI_BASE_URL", ""))
    base_url = _normal_url(url or settings.openai_base_url) or written_url or DEFAULT_BASE_URL
    if base_url != written_url:
        written = {}
    return Endpoint(
        base_url=base_url,
        api_key=_checked_key(
            "--api-key" if api_key else "OPENAI_API_KEY",
            api_key
            or settings.openai_api_key.get_secret_value()
            or written.get("OPENAI_API_KEY", ""),
        ),
        model=model or settings.pagoda_model_name or written.get("PAGODA_MODEL_NAME", ""),
    )


def resolve_administration(*, url: str = "", home: Path | None = None) -> Endpoint:
    """Return the endpoint to administer, with the administration's key in place of an API key.

    That key is PAGODA_GATEWAY_ADMIN_KEY, else the one that `pagoda up` wrote to `<home>/admin.env`
    for the same address.

    Raises:
        EndpointError: as `resolve_endpoint`.
    """
    base_url = resolve_endpoint(url=url, home=home).base_url
    written = _read_env_file(resolve_home(home) / "admin.env")
    if _normal_url(written.get("OPENAI_BASE_URL", "")) != base_url:
        written = {}
    name = "PAGODA_GATEWAY_ADMIN_KEY"
    key = EndpointSettings().pagoda_gateway_admin_key.get_secret_value() or written.get(name, "")
    return Endpoint(base_url, _checked_key(name, key), "")


async def first_model(session: aiohttp.ClientSession, endpoint: Endpoint) -> Endpoint:
    """Return `endpoint` with the first model that the server lists.

    Raises:
        EndpointError: it lists none.
        aiohttp.ClientError: it cannot be reached.
    """
    async with session.get(f"{endpoint.base_url}/models", headers=endpoint.headers) as response:
        content = await response.content.read()
        if response.status != 200:
            raise EndpointError(f"{endpoint.base_url}/models: {error_message(content)}")
    try:
        return replace(endpoint, model=str(orjson.loads(content)["data"][0]["id"]))
    except (ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{endpoint.base_url}/models names no model: give --model") from error


def error_message(content: bytes) -> str:
    """Return the message of an OpenAI error body, or the body."""
    try:
        return str(orjson.loads(content)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return content.decode(errors="replace")[:400]


def _read_env_file(path: Path) -> Mapping[str, str]:
    if not path.is_file():
        return {}
    return {name: value for name, value in dotenv_values(path).items() if value}


def _checked_key(name: str, key: str) -> str:
    """Return a key that a header can hold; nobody may see one that none can."""
    if key.isascii() and key.isprintable() and " " not in key:
        return key
    raise EndpointError(
        f"{name} has spaces, control characters or other letters than ASCII's, which no key has: "
        "does it end with the line ending of a file?"
    )


def _normal_url(url: str) -> str:
    """Return `url` without a trailing slash and, if it has no path at all, with `/v1`.

    Raises:
        EndpointError: it is none.
    """
    url = url.strip().rstrip("/")
    if not url:
        return ""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        is_url = bool(parts.hostname and (parts.port is None or parts.port > 0))
    except ValueError:  # of the brackets of an address, or the port
        is_url = False
    if not is_url or " " in url:
        raise EndpointError(f"{url!r} is no URL of a server, as http://127.0.0.1:8000 is")
    return url if parts.path else f"{url}/v1"
