"""deploy/entrypoint.sh and deploy/make_secrets.py, without a container around them."""

import importlib.util
import os
import signal
import stat
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
ENTRYPOINT = ROOT / "deploy/entrypoint.sh"
KEY = "sk-ends-in-padding=="
GATEWAY = {
    "PAGODA_GATEWAY_BOOTSTRAP_API_KEY", "PAGODA_GATEWAY_ADMIN_KEY", "PAGODA_GATEWAY_LEDGER_URL",
}  # fmt: skip


@pytest.fixture
def make_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as if its volumes lay in a temporary folder."""
    spec = importlib.util.spec_from_file_location("make_secrets", ROOT / "deploy/make_secrets.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("gateway", "applier", "router", "prefill", "decode", "kvstore", "nats", "redis"):
        (tmp_path / "secrets" / name).mkdir(parents=True)
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(module, "FOLDER", tmp_path / "secrets")
    monkeypatch.setattr(module, "NATS_DATA", tmp_path / "data")
    monkeypatch.setattr(module, "GIVEN", tmp_path / "given")
    monkeypatch.setattr(module, "POSTGRES_DATA", tmp_path / "postgres-data")
    monkeypatch.setattr(module, "OWNER", os.getuid())
    return module


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_container_gets_what_it_needs_and_no_more(make_secrets: ModuleType) -> None:
    make_secrets.main()
    folder = make_secrets.FOLDER
    names = {
        service: set(make_secrets.read_lines(folder / service / "env"))
        for service in ("gateway", "applier", "router", "prefill", "decode", "kvstore")
    }

    nats = {"PAGODA_NATS_USER", "PAGODA_NATS_TOKEN"}
    assert names == {
        "gateway": nats | GATEWAY | {"PAGODA_REDIS_URL"},
        "applier": nats | {"PAGODA_GATEWAY_LEDGER_URL"},
        "router": nats | {"PAGODA_REDIS_URL"},
        "prefill": nats | {"PAGODA_CLUSTER_TOKEN"},
        "decode": nats | {"PAGODA_CLUSTER_TOKEN"},
        "kvstore": nats | {"PAGODA_CLUSTER_TOKEN"},
    }
    for path in folder.rglob("*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o400


def test_restarts_keep_what_was_drawn(make_secrets: ModuleType) -> None:
    make_secrets.main()
    before = files(make_secrets.FOLDER)
    make_secrets.main()

    assert files(make_secrets.FOLDER) == before


def test_redis_holds_less_in_a_smaller_container(make_secrets: ModuleType) -> None:
    for limit, held in (("", 1 << 30), ("PAGODA_REDIS_MEM_LIMIT=750m\n", 1 << 29)):
        make_secrets.GIVEN.write_text(limit)
        make_secrets.main()
        written = (make_secrets.FOLDER / "redis" / "redis.conf").read_text()
        assert f"maxmemory {held}\n" in written


def test_a_key_that_is_named_later_is_taken(make_secrets: ModuleType) -> None:
    make_secrets.main()
    before = files(make_secrets.FOLDER)
    make_secrets.GIVEN.write_text(f"PAGODA_API_KEY={KEY}")
    make_secrets.main()
    after = files(make_secrets.FOLDER)

    assert {name for name in before if before[name] != after[name]} == {"gateway/env"}
    assert f"PAGODA_GATEWAY_BOOTSTRAP_API_KEY={KEY}\n" in after["gateway/env"]


def test_a_database_that_was_named_stays(make_secrets: ModuleType) -> None:
    def ledger_url() -> str:
        make_secrets.main()
        env: dict[str, str] = make_secrets.read_lines(make_secrets.FOLDER / "gateway" / "env")
        return env["PAGODA_GATEWAY_LEDGER_URL"]

    assert ledger_url() == make_secrets.LEDGER_FILE
    url = "postgresql://me:a=b@db/pagoda"
    make_secrets.GIVEN.write_text(f"PAGODA_API_KEY=\nPAGODA_GATEWAY_LEDGER_URL={url}\n")
    assert ledger_url() == url
    make_secrets.GIVEN.write_text("PAGODA_API_KEY=\nPAGODA_GATEWAY_LEDGER_URL=\n")
    assert ledger_url() == url


def test_the_projects_own_postgresql_has_a_password(make_secrets: ModuleType) -> None:
    make_secrets.POSTGRES_DATA.mkdir()
    (make_secrets.FOLDER / "postgres").mkdir()
    for _ in range(2):
        make_secrets.main()
        password = (make_secrets.FOLDER / "postgres" / "password").read_text()
        env = make_secrets.read_lines(make_secrets.FOLDER / "gateway" / "env")
        assert env["PAGODA_GATEWAY_LEDGER_URL"] == (
            f"postgresql://pagoda:{password}@postgres:5432/pagoda"
        )


def launch(tmp_path: Path, body: str, **environ: str) -> subprocess.Popen[str]:
    """The entry point with `body` in the place of Python."""
    (tmp_path / "python").write_text(f"#!/bin/sh\n{body}\n")
    (tmp_path / "python").chmod(0o755)
    return subprocess.Popen(
        ["/bin/sh", str(ENTRYPOINT)],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "SERVICE": "decode",
            "PAGODA_SECRETS_FILE": str(tmp_path / "env"),
            **environ,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_secret_keeps_the_padding_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "env").write_text(f"PAGODA_GATEWAY_BOOTSTRAP_API_KEY={KEY}\nPAGODA_NATS_USER=x\n")
    body = 'echo "$PAGODA_GATEWAY_BOOTSTRAP_API_KEY $PAGODA_NATS_USER $*"'
    with launch(tmp_path, body, PAGODA_NATS_USER="given") as process:
        output, _ = process.communicate(timeout=20)

    assert output == f"{KEY} given -m pagoda_decode\n"


def test_settings_that_cannot_be_used_are_tried_again_much_later(tmp_path: Path) -> None:
    (tmp_path / "env").touch()
    with launch(tmp_path, "echo the cause >&2; exit 2") as process:
        assert process.stderr
        assert process.stderr.readline() == "the cause\n"
        assert "next try in 600 s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)

    assert process.returncode == 2


def test_sigterm_reaches_the_service_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    (tmp_path / "env").touch()
    body = "trap 'echo drained; exit 3' TERM; echo up; while :; do sleep 0.01; done"
    with launch(tmp_path, body) as process:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)

    assert (process.returncode, output) == (3, "drained\n")
