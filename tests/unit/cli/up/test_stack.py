import contextlib
import itertools
import os
from pathlib import Path

import pytest
import sqlalchemy as sa

from pagoda_cli.up.child import ChildSpec
from pagoda_cli.up.home import load_secrets, lock_home
from pagoda_cli.up.plan import make_plan
from pagoda_cli.up.ports import pick_port
from pagoda_cli.up.stack import EMPTY_MEANS_NONE, Stack
from pagoda_cli.up.supervisor import MARGIN_SECONDS
from pagoda_gateway.config import GatewaySettings
from pagoda_runtime.configuration.settings import load_settings


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return {"PAGODA_HOME": str(tmp_path / "home"), "PAGODA_MODEL": str(model), "PATH": "/bin"}


def build(environ: dict[str, str]) -> tuple[Stack, dict[str, ChildSpec]]:
    plan = make_plan(environ)
    lock_home(plan.home).close()
    with contextlib.closing(Stack(plan, load_secrets(plan.home), environ)) as stack:
        return stack, {spec.name: spec for spec in stack.specs()}


def test_no_port_is_drawn_that_a_setting_names(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even one that is read after others are drawn."""
    port = pick_port()
    drawn = itertools.count(port)
    monkeypatch.setattr("pagoda_cli.up.ports.random.randint", lambda *_: next(drawn))
    _, specs = build(environ | {"PAGODA_ROUTER_HEALTH_PORT": str(port)})

    assert specs["router"].environ["PAGODA_ROUTER_HEALTH_PORT"] == str(port)
    assert specs["kvstore"].environ["PAGODA_KVSTORE_GRPC_PORT"] != str(port)


def test_the_default_is_one_prefill_and_one_decode_worker(environ: dict[str, str]) -> None:
    _, specs = build(environ)

    assert set(specs) == {
        *("nats", "redis", "gateway", "applier", "router", "kvstore"),
        *("prefill-1", "decode-1"),
    }


def test_workers_are_counted_by_the_topology(environ: dict[str, str]) -> None:
    _, specs = build(environ | {"PAGODA_TOPOLOGY": "prefill=0,decode=3"})

    assert [name for name in specs if "-" in name] == ["decode-1", "decode-2", "decode-3"]
    ports = {specs[f"decode-{i}"].environ["PAGODA_DECODE_GRPC_PORT"] for i in (1, 2, 3)}
    assert len(ports) == 3


@pytest.mark.parametrize(
    ("host", "written"),
    [("127.0.0.2", "127.0.0.2"), ("::1", "[::1]"), ("[::1]", "[::1]"), ("0.0.0.0", "127.0.0.1")],
)
def test_workers_ask_the_kvstore_where_it_listens(
    environ: dict[str, str], host: str, written: str
) -> None:
    _, specs = build(environ | {"PAGODA_KVSTORE_GRPC_HOST": host})

    port = specs["kvstore"].environ["PAGODA_KVSTORE_GRPC_PORT"]
    assert specs["decode-1"].environ["PAGODA_DECODE_KVSTORE_ENDPOINT"] == f"{written}:{port}"


def test_services_find_each_other(environ: dict[str, str]) -> None:
    _, specs = build(environ)

    kvstore = specs["kvstore"].environ["PAGODA_KVSTORE_GRPC_PORT"]
    assert specs["decode-1"].environ["PAGODA_DECODE_KVSTORE_ENDPOINT"] == f"127.0.0.1:{kvstore}"
    assert specs["prefill-1"].environ["PAGODA_PREFILL_KVSTORE_ENDPOINT"] == f"127.0.0.1:{kvstore}"
    for name in ("PAGODA_NATS_URL", "PAGODA_MODEL_NAME"):
        values = {specs[s].environ[name] for s in ("gateway", "router", "kvstore", "decode-1")}
        assert len(values) == 1
    tokens = {
        specs[s].environ["PAGODA_CLUSTER_TOKEN"] for s in ("kvstore", "prefill-1", "decode-1")
    }
    assert len(tokens) == 1


SECRETS = {
    "PAGODA_NATS_TOKEN": {"gateway", "applier", "router", "kvstore", "prefill-1", "decode-1"},
    "PAGODA_CLUSTER_TOKEN": {"kvstore", "prefill-1", "decode-1"},
    "PAGODA_REDIS_URL": {"router", "gateway"},
    "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": {"gateway"},
    "PAGODA_GATEWAY_ADMIN_KEY": {"gateway"},
    "PAGODA_GATEWAY_LEDGER_URL": {"gateway", "applier"},
}


@pytest.mark.parametrize(
    ("name", "is_given"),
    [
        *((name, True) for name in SECRETS),
        *((name, False) for name in SECRETS if name != "PAGODA_GATEWAY_LEDGER_URL"),
    ],
)
def test_each_process_gets_only_its_own_secrets(
    environ: dict[str, str], name: str, is_given: bool
) -> None:
    urls = {
        "PAGODA_REDIS_URL": "redis://:secret@redis.internal/0",
        "PAGODA_GATEWAY_LEDGER_URL": "postgresql://me:secret@db.internal/pagoda",
    }
    value = urls.get(name, "mine-0123456789abcdef")
    _, specs = build(environ | ({name: value} if is_given else {}))
    holders = {spec.name for spec in specs.values() if name in spec.environ}

    assert holders == SECRETS[name]


def test_each_service_is_a_user_of_its_own_at_nats(environ: dict[str, str]) -> None:
    _, specs = build(environ | {"PAGODA_TOPOLOGY": "prefill=1,decode=2"})
    users = {
        name: (spec.environ["PAGODA_NATS_USER"], spec.environ["PAGODA_NATS_TOKEN"])
        for name, spec in specs.items()
        if "PAGODA_NATS_USER" in spec.environ
    }

    assert {user for user, _ in users.values()} == {
        *("gateway", "applier", "router", "prefill", "decode", "kvstore")
    }
    assert len({password for _, password in users.values()}) == 6
    assert users["decode-1"] == users["decode-2"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_further_worker_joins_as_the_stack_s_own_do(environ: dict[str, str], role: str) -> None:
    stack, specs = build(environ)

    joining, own = stack.joining_environment(role), specs[f"{role}-1"].environ

    assert joining.items() <= own.items()
    assert joining["PAGODA_NATS_USER"] == role
    assert {"PAGODA_NATS_URL", "PAGODA_NATS_TOKEN", "PAGODA_CLUSTER_TOKEN"} <= joining.keys()
    assert f"PAGODA_{role.upper()}_KVSTORE_ENDPOINT" in joining
    assert "PAGODA_MODEL" not in joining


def test_who_has_a_server_logs_in_there_as_the_user_says(environ: dict[str, str]) -> None:
    given = {"PAGODA_NATS_URL": "nats://nats.internal:4222", "PAGODA_NATS_TOKEN": "mine"}
    _, specs = build(environ | given)

    for service in ("gateway", "decode-1"):
        assert specs[service].environ["PAGODA_NATS_TOKEN"] == "mine"
        assert "PAGODA_NATS_USER" not in specs[service].environ


@pytest.mark.parametrize("topology", ["disaggregated", "prefill=2,decode=3"])
def test_workers_share_a_gpu_s_memory(environ: dict[str, str], topology: str) -> None:
    _, specs = build(environ | {"PAGODA_TOPOLOGY": topology})
    shares = [
        float(value)
        for spec in specs.values()
        for name, value in spec.environ.items()
        if name.endswith("_GPU_MEMORY_UTILIZATION")
    ]
    assert sum(shares) == pytest.approx(0.9)


def test_what_the_user_sets_wins(environ: dict[str, str]) -> None:
    stack, specs = build(
        environ
        | {
            "PAGODA_KVSTORE_GRPC_PORT": "7105",
            "PAGODA_KVSTORE_CPU_BYTES": "1000000",
            "PAGODA_GATEWAY_BOOTSTRAP_API_KEY": "mine",
            "PAGODA_NATS_URL": "nats://nats.internal:4222",
            "OMP_NUM_THREADS": "4",
            "PAGODA_DECODE_GPU_MEMORY_UTILIZATION": "0.5",
        }
    )

    decode = specs["decode-1"].environ
    assert stack.api_key == "mine"
    assert "nats" not in specs
    assert decode["PAGODA_NATS_URL"] == "nats://nats.internal:4222"
    assert decode["PAGODA_DECODE_KVSTORE_ENDPOINT"] == "127.0.0.1:7105"
    assert specs["kvstore"].environ["PAGODA_KVSTORE_CPU_BYTES"] == "1000000"
    assert decode["PAGODA_DECODE_GPU_MEMORY_UTILIZATION"] == "0.5"
    assert decode["OMP_NUM_THREADS"] == "4"


def test_a_stack_stops_within_ten_seconds(environ: dict[str, str]) -> None:
    _, specs = build(environ)
    stages = {
        stage: max(spec.stop_seconds for spec in specs.values() if spec.stop_stage == stage)
        for stage in {spec.stop_stage for spec in specs.values()}
    }

    assert stages == {0: 3.0, 1: 2.0, 2: 0.0}
    assert sum(stages.values()) + len(stages) * MARGIN_SECONDS < 10


@pytest.mark.parametrize(
    ("process", "setting"),
    [
        ("gateway", "PAGODA_GATEWAY_DRAIN_SECONDS"),
        ("prefill-1", "PAGODA_PREFILL_DRAIN_SECONDS"),
        ("decode-1", "PAGODA_DECODE_DRAIN_SECONDS"),
        ("kvstore", "PAGODA_KVSTORE_FLUSH_SECONDS"),
    ],
)
def test_a_process_has_the_time_that_it_was_told_to_stop_in(
    environ: dict[str, str], process: str, setting: str
) -> None:
    _, specs = build(environ | {setting: "30"})

    assert specs[process].environ[setting] == "30"
    assert specs[process].stop_seconds == 30


def test_what_is_set_empty_is_none_where_that_has_a_meaning(environ: dict[str, str]) -> None:
    stack, specs = build(environ | dict.fromkeys(EMPTY_MEANS_NONE, ""))
    names = [name for spec in specs.values() for name in spec.environ if name in EMPTY_MEANS_NONE]

    assert set(names) == EMPTY_MEANS_NONE
    assert not any(spec.environ.get(name) for spec in specs.values() for name in names)
    assert (stack.api_key, stack.admin_key) == ("", "")
    assert "PAGODA_TRACE_DIR" not in stack.joining_environment("decode")


def test_what_is_set_empty_otherwise_counts_as_unset(environ: dict[str, str]) -> None:
    names = ("PAGODA_CLUSTER_TOKEN", "PAGODA_DECODE_GRPC_PORT", "PAGODA_GATEWAY_DRAIN_SECONDS")
    _, specs = build(environ | dict.fromkeys(names, ""))

    assert specs["decode-1"].environ["PAGODA_CLUSTER_TOKEN"]
    assert specs["decode-1"].environ["PAGODA_DECODE_GRPC_PORT"]
    assert specs["gateway"].environ["PAGODA_GATEWAY_DRAIN_SECONDS"]


@pytest.mark.parametrize(
    ("topology", "num_processors", "expected"),
    [("prefill=1,decode=1", 8, "4"), ("decode=1", 8, "8"), ("prefill=2,decode=3", 4, "1")],
)
def test_workers_share_the_processors(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    topology: str, num_processors: int, expected: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(num_processors)))
    _, specs = build(environ | {"PAGODA_TOPOLOGY": topology})
    workers = [spec for name, spec in specs.items() if name.startswith(("prefill", "decode"))]
    assert {spec.environ["OMP_NUM_THREADS"] for spec in workers} == {expected}


def test_secrets_are_in_no_command_line(environ: dict[str, str]) -> None:
    _, specs = build(environ)
    secrets = load_secrets(Path(environ["PAGODA_HOME"]))

    commands = " ".join(word for spec in specs.values() for word in spec.command)
    assert not any(password in commands for password in secrets.nats_passwords.values())
    assert secrets.redis_password not in commands
    assert (Path(environ["PAGODA_HOME"]) / "nats.conf").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["josé", "feat%2Fx", "what? #1", 'it\'s "here"'])
def test_the_ledger_lies_in_the_home_whatever_that_is_called(
    environ: dict[str, str], tmp_path: Path, name: str
) -> None:
    _, specs = build(environ | {"PAGODA_HOME": str(tmp_path / name)})
    for process in ("gateway", "applier"):
        variables = specs[process].environ
        settings = load_settings(GatewaySettings, variables)
        url = sa.make_url(settings.ledger_address(Path(variables["PAGODA_HOME"])))
        assert url.database == str(tmp_path / name / "ledger.sqlite")
        assert not url.query


def test_services_read_names_as_utf8_whatever_the_locale(environ: dict[str, str]) -> None:
    _, specs = build(environ | {"PYTHONUTF8": "0"})
    services = set(specs) - {"nats", "redis"}
    assert {specs[name].environ["PYTHONUTF8"] for name in services} == {"1"}


def test_services_are_asked_where_they_listen(environ: dict[str, str]) -> None:
    given = {"PAGODA_GATEWAY_HOST": "192.0.2.2", "PAGODA_ROUTER_HEALTH_HOST": "192.0.2.3"}
    _, specs = build(environ | given)
    hosts = {name: specs[name].ready_host for name in ("gateway", "applier", "router", "kvstore")}
    assert hosts == {
        "gateway": "192.0.2.2",
        "applier": "127.0.0.1",
        "router": "192.0.2.3",
        "kvstore": "127.0.0.1",
    }


@pytest.mark.parametrize(("num_decode", "ids"), [(1, ["mine"]), (2, ["mine-1", "mine-2"])])
def test_no_two_workers_have_one_id(
    environ: dict[str, str], num_decode: int, ids: list[str]
) -> None:
    topology = {"PAGODA_TOPOLOGY": f"prefill=1,decode={num_decode}"}
    _, specs = build(environ | topology | {"PAGODA_DECODE_WORKER_ID": "mine"})
    decode = [spec.environ for name, spec in specs.items() if name.startswith("decode")]

    assert [variables["PAGODA_DECODE_WORKER_ID"] for variables in decode] == ids
    assert "PAGODA_PREFILL_WORKER_ID" not in specs["prefill-1"].environ
