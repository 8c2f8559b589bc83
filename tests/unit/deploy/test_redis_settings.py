"""Redis is the same one under `pagoda up` and in the containers."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pagoda_cli.up.infrastructure import REDIS_MAX_BYTES, redis_spec
from pagoda_router.config import RouterSettings

ROOT = Path(__file__).parents[3]
SHARED = ("save", "appendonly", "maxmemory", "maxmemory-policy")


def read(text: str) -> dict[str, str]:
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    return {name: value for name, value in lines if name in SHARED}


@pytest.fixture
def make_secrets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_secrets", ROOT / "deploy/make_secrets.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_say_the_same_and_only_the_index_is_ever_evicted(
    tmp_path: Path, make_secrets: ModuleType
) -> None:
    max_bytes = make_secrets.redis_max_bytes(make_secrets.REDIS_LIMIT)
    contained = read(make_secrets.REDIS % ("secret", max_bytes))
    redis_spec(tmp_path, port=1, password="p", environ={})
    assert read((tmp_path / "redis.conf").read_text()) == contained
    assert contained["maxmemory-policy"] == "volatile-ttl"


def test_the_index_leaves_room_in_redis() -> None:
    assert RouterSettings().index_max_bytes <= 0.8 * REDIS_MAX_BYTES


def test_redis_ends_within_the_limit_of_its_container(make_secrets: ModuleType) -> None:
    for limit, num_mib in (("512m", 512), ("0.5GiB", 512), ("4g", 4096), ("536870912", 512)):
        share = make_secrets.redis_max_bytes(limit) / (num_mib << 20)
        assert 0.6 < share < 0.75, limit
    with pytest.raises(SystemExit, match="PAGODA_REDIS_MEM_LIMIT: 'much' is no size"):
        make_secrets.redis_max_bytes("much")


def test_the_limit_of_the_container_is_said_to_who_configures_redis(
    make_secrets: ModuleType,
) -> None:
    text = (ROOT / "compose.yaml").read_text()
    limit = f"${{PAGODA_REDIS_MEM_LIMIT:-{make_secrets.REDIS_LIMIT}}}"

    assert f"mem_limit: {limit}" in text
    assert f"{make_secrets.REDIS_LIMIT_NAME}={limit}\n" in text
