"""Names of environment variables: which are valid, and the nearest valid one to a wrong one."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from pydantic_settings import BaseSettings

PREFIX = "PAGODA_"
# Whose names a service leaves alone: it cannot ask the others, which may not be installed.
SERVICES = ("gateway", "router", "prefill", "decode", "kvstore")
SERVICE_PREFIXES = tuple(f"{PREFIX}{service.upper()}_" for service in SERVICES)
OTHER_PREFIXES = (f"{PREFIX}BENCH_",)  # read by their owners only


def variable_names(cls: type[BaseSettings]) -> dict[str, str]:
    """Return the environment variable of each field of a settings model."""
    prefix = str(cls.model_config.get("env_prefix", PREFIX))
    return {field: f"{prefix}{field}".upper() for field in cls.model_fields}


def unknown_name_problems(
    variables: Mapping[str, str],
    models: Sequence[type[BaseSettings]],
    *,
    every_service: bool = False,
) -> list[str]:
    """Return one line for each PAGODA_* name that no model knows.

    Args:
        variables: the environment.
        models: the models that are read from it.
        every_service: `models` covers every service, so that no name is left to another owner.
    """
    valid = {name for model in models for name in variable_names(model).values()}
    own_prefixes = {str(model.model_config.get("env_prefix", PREFIX)).upper() for model in models}
    all_owned = SERVICE_PREFIXES if every_service else ()
    problems = []
    for name in sorted(variables):
        if not name.startswith(PREFIX) or name in valid:
            continue
        if name.startswith(OTHER_PREFIXES):
            continue
        owner = next((prefix for prefix in SERVICE_PREFIXES if name.startswith(prefix)), PREFIX)
        is_ours = owner == PREFIX or owner in own_prefixes or owner in all_owned
        if not is_ours:
            continue
        problems.append(f"{name} is no setting; {_hint(name, valid)}")
    return problems


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most like `name`, or None if none is close."""
    matches = difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.75)
    return matches[0] if matches else None


def _hint(name: str, valid: set[str]) -> str:
    match = nearest(name, valid)
    service, _, rest = name.removeprefix(PREFIX).partition("_")
    owner = nearest(service, map(str.upper, SERVICES))
    if owner and rest and owner != service:
        corrected = f"{PREFIX}{owner}_{rest}"
        return f"did you mean {match if match and match.startswith(PREFIX + owner) else corrected}?"
    return f"did you mean {match}?" if match else "docs/configuration.md lists all names"
