"""The compose files agree with themselves and with what the documents tell people to type."""

import hashlib
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagoda_cli.configuration_page import render_names
from pagoda_runtime.messaging.permissions import PERMISSIONS, authorization
from pagoda_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OVERLAYS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("deploy/compose.*.yaml"))
BEHIND = {
    "deploy/compose.two-models-cpu.yaml": (
        "deploy/compose.cpu.yaml",
        "deploy/compose.two-models.yaml",
    )
}
"""Overlays of overlays."""
NOTHING_SET: Mapping[str, str] = {}
WORKERS = ("prefill", "decode")
PAGES = ("README.md", "docs/howto/gpu.md", "docs/howto/models.md")
TEXT = "".join((ROOT / page).read_text() for page in PAGES)
COMMANDS = re.findall(r"^\$ ?((?:\w+=\S+ )*docker compose[^#\n]*)", TEXT, re.MULTILINE)

Services = dict[str, dict[str, Any]]


class Loader(yaml.SafeLoader):
    """Knows Compose's tags."""


Loader.add_constructor("!reset", lambda loader, node: None)


def read(name: str, variables: Mapping[str, str] = NOTHING_SET) -> Services:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1], match[2])

    text = re.sub(r"\$\{(\w+):?-([^}]*)\}", value, (ROOT / name).read_text())
    services: Services = yaml.load(text, Loader)["services"]
    return services


def overlaid(*names: str, variables: Mapping[str, str] = NOTHING_SET) -> Services:
    """The services of compose.yaml under overlays, as far as these tests look at them."""
    alone = read("compose.yaml", variables)  # which is all that `extends` knows
    services = dict(alone)
    for service, changes in [each for name in names for each in read(name, variables).items()]:
        if changes is None:
            services[service] = changes
            continue
        extended = changes.get("extends")
        base = alone[extended["service"]] if extended else services.get(service, {})
        merged = {
            name: base.get(name, {}) | changes.get(name, {})
            for name in ("environment", "depends_on")
        }
        services[service] = base | changes | merged
    return services


def needs_of(services: Services, name: str) -> set[str]:
    """What Compose starts before a service and stops after it."""
    direct = set(services[name].get("depends_on", {}))
    return direct.union(*(needs_of(services, needed) for needed in direct))


def workers_of(services: Services) -> Services:
    images = {f"pagoda/{role}" for role in WORKERS}
    return {
        name: service
        for name, service in services.items()
        if service and service["image"] in images
    }


def devices(service: dict[str, Any]) -> list[dict[str, Any]]:
    resources = (service.get("deploy") or {}).get("resources", {})
    reserved: list[dict[str, Any]] = resources.get("reservations", {}).get("devices", [])
    return reserved


def role_of(service: dict[str, Any]) -> str:
    return str(service["image"]).removeprefix("pagoda/").upper()


def share_of(service: dict[str, Any]) -> float:
    return float(service["environment"][f"PAGODA_{role_of(service)}_GPU_MEMORY_UTILIZATION"])


def shares_by_gpu(services: Services, replicas: dict[str, int] | None = None) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)
    for name, worker in workers_of(services).items():
        gpu = str(worker["environment"]["CUDA_VISIBLE_DEVICES"])
        shares[gpu] += share_of(worker) * (replicas or {}).get(name, 1)
    return shares


@pytest.fixture(scope="module")
def services() -> Services:
    return read("compose.yaml")


def test_workers_and_nobody_else_reserve_gpus(services: Services) -> None:
    assert set(workers_of(services)) == set(WORKERS)
    for name, service in services.items():
        wanted = [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
        assert devices(service) == (wanted if name in WORKERS else [])


def test_shares_of_the_one_gpu_add_up(services: Services) -> None:
    shares = shares_by_gpu(services)

    assert set(shares) == {"0"}
    assert 0.8 <= shares["0"] <= 1


def test_with_several_gpus_every_worker_has_one_of_its_own() -> None:
    services = overlaid("deploy/compose.gpus.yaml")
    shares = shares_by_gpu(services)

    assert sorted(shares) == ["0", "1", "2", "3"]
    assert max(shares.values()) <= 1
    assert len(workers_of(services)) == 4


def test_a_second_model_has_workers_and_a_gpu_of_its_own() -> None:
    services = overlaid("deploy/compose.two-models.yaml")
    shares = shares_by_gpu(services)
    second = {name: service for name, service in services.items() if name.startswith("second-")}
    folders = [service["volumes"][-1]["target"] for service in second.values()]
    models = services["gateway"]["environment"]["PAGODA_GATEWAY_MODELS"]

    assert {name: role_of(service) for name, service in second.items()} == {
        "second-prefill": "PREFILL",
        "second-decode": "DECODE",
    }
    assert sorted(shares) == ["0", "1"]
    assert max(shares.values()) <= 1
    for service in second.values():
        assert service["environment"]["PAGODA_MODEL"] == "/models/second"
    assert folders == ["/models/second"] * 2
    assert services["gateway"]["volumes"][-1]["target"] == "/models/second"
    assert json.loads(models) == {
        second["second-decode"]["environment"]["PAGODA_MODEL_NAME"]: "/models/second"
    }


def test_each_gpu_has_one_variable_of_its_own() -> None:
    texts = [(ROOT / name).read_text() for name in ("compose.yaml", "deploy/compose.gpus.yaml")]
    found = re.findall(r"CUDA_VISIBLE_DEVICES: \$\{(\w+):-\d\}", "".join(texts))

    assert sorted(set(found)) == [
        "PAGODA_DECODE_2_GPU",
        "PAGODA_DECODE_3_GPU",
        "PAGODA_DECODE_GPU",
        "PAGODA_PREFILL_GPU",
    ]


def test_workers_on_gpus_share_the_namespaces_that_kv_travels_through() -> None:
    services = overlaid("deploy/compose.gpus.yaml")
    owners = {(worker["pid"], worker["ipc"]) for worker in workers_of(services).values()}

    assert owners == {("service:namespaces", "service:namespaces")}
    assert services["namespaces"]["ipc"] == "shareable"
    assert "shm_size" in services["namespaces"]
    assert not any("pid" in s for name, s in services.items() if name not in workers_of(services))


def test_an_upgrade_of_a_service_leaves_the_namespaces_alone(services: Services) -> None:
    namespaces = services["namespaces"]
    others = {service["image"] for name, service in services.items() if name != "namespaces"}
    dockerfile = (ROOT / "deploy/namespaces.Dockerfile").read_text()

    assert namespaces["image"] not in others
    assert "COPY" not in dockerfile
    assert "wait" in dockerfile, "somebody must reap what workers leave"


def test_workers_on_the_cpu_depend_on_no_container_that_holds_namespaces() -> None:
    services = overlaid("deploy/compose.cpu.yaml")

    assert services["namespaces"] is None
    for role in WORKERS:
        assert services[role]["pid"] is None
        assert services[role]["ipc"] is None
    # Nobody can open a pool across containers, and each decode worker would warn of it.
    assert services["prefill"]["environment"]["PAGODA_PREFILL_KV_TRANSFER"] == "grpc"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_a_service_uses_is_stopped_after_it(overlay: str) -> None:
    services = overlaid(*BEHIND.get(overlay, ()), overlay)
    workers = workers_of(services)

    assert needs_of(services, "gateway") >= {"router", *workers}
    for name in workers:
        assert "kvstore" in needs_of(services, name), "it takes what only the worker holds"
    for name in ("router", "kvstore", *workers):
        assert needs_of(services, name) >= {"nats", "redis"}


def test_two_models_without_a_gpu_need_none() -> None:
    last = "deploy/compose.two-models-cpu.yaml"
    services = overlaid(*BEHIND[last], last)
    workers = workers_of(services)

    assert len(workers) == 4
    for name, worker in workers.items():
        assert not devices(worker), name
        assert worker["pid"] is worker["ipc"] is None, name
        assert worker["environment"][f"PAGODA_{role_of(worker)}_DEVICE"] == "cpu", name
    first, second = (services[name]["environment"] for name in ("prefill", "second-prefill"))
    assert second["PAGODA_PREFILL_KV_TRANSFER"] == first["PAGODA_PREFILL_KV_TRANSFER"]


def built(services: Services) -> Services:
    return {name: service for name, service in services.items() if "build" in service}


def test_what_is_built_here_is_never_pulled(services: Services) -> None:
    assert {service["pull_policy"] for service in built(services).values()} == {"build"}
    assert {service["image"].split("/")[0] for service in built(services).values()} == {"pagoda"}


def test_every_container_is_confined(services: Services) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "mem_limit" in service, name
        assert "privileged" not in service, name
        if name not in ("secrets", "jaeger"):
            assert service["read_only"], name
            assert "cap_add" not in service, name


def test_each_container_sees_its_own_secrets_alone(services: Services) -> None:
    for name, service in services.items():
        mounted = [
            volume.split(":")[0]
            for volume in service.get("volumes", [])
            if isinstance(volume, str) and volume.startswith("secrets-")
        ]
        if name == "secrets":
            assert len(mounted) == 8
            assert service["network_mode"] == "none"
        elif name not in ("jaeger", "namespaces"):
            assert mounted == [f"secrets-{name}"]


def test_no_secret_is_in_a_container_s_environment(services: Services) -> None:
    for service in services.values():
        for variable in service.get("environment", {}):
            assert not re.search("TOKEN|KEY|PASSWORD|REDIS_URL|NATS_USER", variable)


def test_a_postgresql_of_the_project_is_confined_and_has_its_own_secrets() -> None:
    overlay = read("deploy/compose.postgres.yaml")
    test_every_container_is_confined({"postgres": overlay["postgres"]})
    test_each_container_sees_its_own_secrets_alone({"postgres": overlay["postgres"]})
    assert overlay["secrets"]["volumes"][0].startswith("secrets-postgres:")
    assert "ports" not in overlay["postgres"]
    password = overlay["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"]
    assert password == "/run/pagoda/password"  # where make_secrets.py writes it


def test_metrics_can_be_read_inside_the_project_and_not_outside(services: Services) -> None:
    for name in ("gateway", "applier", "router", "prefill", "decode", "kvstore"):
        environment = services[name]["environment"]
        prefix = "PAGODA_GATEWAY" if name == "applier" else f"PAGODA_{name.upper()}"
        assert environment[f"{prefix}_HEALTH_HOST"] == "0.0.0.0"
        assert environment[f"{prefix}_HEALTH_PORT"] == 9000
        assert services[name]["healthcheck"]["test"][-1] == "9000"
        assert not any(port.endswith(":9000") for port in services[name].get("ports", []))


def test_a_model_folder_that_is_missing_is_not_made(services: Services) -> None:
    for name in ("gateway", *WORKERS):
        mounts = [v for v in services[name]["volumes"] if isinstance(v, dict)]
        assert [m["target"] for m in mounts] == ["/models/model"]
        assert mounts[0]["bind"] == {"create_host_path": False}


def test_tracing_can_be_switched_off() -> None:
    text = (ROOT / "compose.yaml").read_text()

    assert "${OTEL_EXPORTER_OTLP_ENDPOINT-http" in text, "with :- an empty one would be Jaeger"


def test_without_traces_nobody_has_jaeger_or_asks_for_it(services: Services) -> None:
    bare = overlaid("deploy/compose.no-traces.yaml")
    exporting = [
        name for name, service in services.items() if ENDPOINT in service.get("environment", {})
    ]

    assert bare.pop("jaeger") is None
    assert len(exporting) == 6
    assert [bare[name]["environment"][ENDPOINT] for name in exporting] == [""] * 6
    assert not any("jaeger" in needs_of(bare, name) for name in bare)


def test_settings_reach_every_service(services: Services) -> None:
    names = (ROOT / "deploy/settings.env").read_text()
    for name in ("gateway", "router", *WORKERS, "kvstore"):
        assert services[name]["env_file"] == [
            {"path": "pagoda.env", "required": False},
            "deploy/settings.env",
        ]
    assert names == render_names(), "run `make docs`"


def test_without_a_gpu_nothing_asks_for_one() -> None:
    assert not any(
        devices(service) for service in overlaid("deploy/compose.cpu.yaml").values() if service
    )


def test_compiled_kernels_outlive_a_container(services: Services) -> None:
    dockerfile = (ROOT / "deploy/worker.Dockerfile").read_text()

    assert "TRITON_CACHE_DIR=/var/cache/pagoda/" in dockerfile
    assert re.search(r"chown pagoda .*/var/cache/pagoda", dockerfile), "else only root may write"
    assert re.search(r"install .*gcc libc6-dev", dockerfile), "Triton compiles C at run time"
    for worker in workers_of(services).values():
        assert "kernels:/var/cache/pagoda" in worker["volumes"]


def test_workers_compute_on_a_gpu_or_end() -> None:
    for overlay, device in (("gpus", "cuda"), ("cpu", "cpu")):
        for worker in workers_of(overlaid(f"deploy/compose.{overlay}.yaml")).values():
            assert worker["environment"][f"PAGODA_{role_of(worker)}_DEVICE"] == device


def test_settings_that_the_page_and_refusals_name_reach_the_workers() -> None:
    page = (ROOT / "docs/howto/gpu.md").read_text()
    refusals = (ROOT / "engine/pagoda_engine/start_up/pool_plan.py").read_text()
    words = set(re.findall(r"`(\w+)`", page)) | set(re.findall(r"`(\w+)`", refusals))
    words |= {name.lower() for name in re.findall(r"PAGODA_(?:PREFILL|DECODE)_(\w+)", page)}
    fields = words & set(WorkerSettings.model_fields)
    assert {"num_blocks", "max_model_len", "graph_batch_sizes", "step_trace_interval"} <= fields
    names = (ROOT / "deploy/settings.env").read_text().splitlines()
    for role, field in itertools.product(("PREFILL", "DECODE"), fields):
        assert f"PAGODA_{role}_{field.upper()}" in names


def test_commands_in_the_documents_name_files_that_exist() -> None:
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        for name in re.findall(r"-f (\S+)", command):
            assert (ROOT / name).is_file(), command


def test_each_worker_of_commands_in_the_documents_has_room_on_its_gpu() -> None:
    several = [command for command in COMMANDS if "-f deploy/compose.gpus.yaml" in command]

    assert len(several) == 4
    for command in several:
        variables = dict(re.findall(r"(\w+)=(\S+)", command))
        services = overlaid(*re.findall(r"-f (deploy/\S+)", command), variables=variables)
        started = {
            name: service
            for name, service in services.items()
            if not service.get("profiles") or "--profile" in command
        }
        assert max(shares_by_gpu(started).values()) <= 1, command


def test_scaled_commands_in_the_documents_fit_on_one_gpu() -> None:
    scaled = [command for command in COMMANDS if "--scale decode" in command]

    assert len(scaled) == 2
    for command in scaled:
        services = read("compose.yaml")
        for name, value in re.findall(r"(\w+_GPU_MEMORY_UTILIZATION)=(\S+)", command):
            for worker in workers_of(services).values():
                if name in worker["environment"]:
                    worker["environment"][name] = value
        replicas = {name: int(n) for name, n in re.findall(r"--scale (\w+)=(\d+)", command)}
        assert shares_by_gpu(services, replicas)["0"] <= 1, command


def test_nats_starts_anew_where_its_users_have_changed() -> None:
    """Compose starts a container anew when its definition has changed, not what it mounts."""
    rendered = authorization(dict.fromkeys(PERMISSIONS, ""))
    expected = hashlib.sha256(rendered.encode()).hexdigest()[:12]
    assert read("compose.yaml")["nats"]["labels"] == {"pagoda.permissions": expected}
