"""The checked settings of one stack. Knows nothing of processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagoda_cli.all_settings import all_settings, settings_of
from pagoda_cli.up.ports import LOOPBACK
from pagoda_cli.up.topology import ROLES, StackSettings, Topology, parse_topology
from pagoda_runtime.configuration.model_folder import resolve_model_folder
from pagoda_runtime.configuration.names import PREFIX
from pagoda_runtime.configuration.settings import load_settings, validate_environment
from pagoda_runtime.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Plan:
    """The checked settings of one stack."""

    home: Path
    http_host: str
    http_port: int
    model: Path
    model_name: str
    topology: Topology


def make_plan(environ: Mapping[str, str]) -> Plan:
    """Check the settings of all services together.

    Raises:
        SettingsError: unknown names or unusable values; lists them all.
        ModelFolderError: there is no such model.
    """
    models = all_settings() | {"common": StackSettings}
    validate_environment(list(models.values()), environ)
    common = load_settings(StackSettings, environ)
    topology = parse_topology(common.topology)
    ports = {"PAGODA_HTTP_PORT": common.http_port, **given_ports(environ)}
    if not topology.num_prefill:
        ports = {n: port for n, port in ports.items() if not n.startswith("PAGODA_PREFILL_")}
    problems = [*_port_problems(ports, environ), *_block_size_problems(topology, environ)]
    if problems:
        raise SettingsError(problems)
    return Plan(
        home=common.home.resolve(),
        http_host=environ.get("PAGODA_GATEWAY_HOST") or LOOPBACK,
        http_port=common.http_port,
        model=resolve_model_folder(common),
        model_name=common.served_model_name,
        topology=topology,
    )


def given_ports(environ: Mapping[str, str]) -> dict[str, int]:
    """Return every port that a setting names, used or not, by its name."""
    return {
        name: int(value)
        for name, value in environ.items()
        if name.startswith(PREFIX) and name.endswith("_PORT") and value.strip().isdecimal()
    }


def _port_problems(ports: Mapping[str, int], environ: Mapping[str, str]) -> list[str]:
    """Return which settings name the same port of a host; 0 names none."""
    names: dict[tuple[str, int], list[str]] = {}
    for name, port in ports.items():
        its_host = f"{name.removesuffix('_PORT')}_HOST".replace("_HTTP_", "_GATEWAY_")
        names.setdefault((environ.get(its_host) or LOOPBACK, port), []).append(name)
    return [
        f"{' and '.join(same)} name the same port, {port}; give each one of its own"
        for (_, port), same in names.items()
        if port and len(same) > 1
    ]


def _block_size_problems(topology: Topology, environ: Mapping[str, str]) -> list[str]:
    """Return why no decode worker could use the KV of the prefill workers, if there are any."""
    if not topology.num_prefill:
        return []
    prefill, decode = (
        load_settings(settings_of(role), environ).model_dump()["block_size"] for role in ROLES
    )
    if prefill == decode:
        return []
    return [
        f"PAGODA_PREFILL_BLOCK_SIZE is {prefill} and PAGODA_DECODE_BLOCK_SIZE {decode}: decode "
        "workers could use no KV of prefill workers; give both the same value"
    ]
