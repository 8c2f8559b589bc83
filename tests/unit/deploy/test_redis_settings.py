"""Redis is the same one under `pagoda up` and in the containers."""

import importlib.util
from pathlib import Path

from pagoda_cli.up.infrastructure import REDIS_MAX_BYTES, redis_spec
from pagoda_router.config import RouterSettings

ROOT = Path(__file__).parents[3]
SHARED = ("save", "appendonly", "maxmemory", "maxmemory-policy")


def read(text: str) -> dict[str, str]:
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    values = {name: value for name, value in lines if name in SHARED}
    return values | {"maxmemory": values["maxmemory"].replace("1gb", str(1 << 30))}


def test_both_say_the_same_and_only_the_index_is_ever_evicted(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_secrets", ROOT / "deploy/make_secrets.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    make_secrets = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_secrets)
    contained = read(make_secrets.REDIS % "secret")
    redis_spec(tmp_path, port=1, password="p", environ={})
    assert read((tmp_path / "redis.conf").read_text()) == contained
    assert contained["maxmemory-policy"] == "volatile-ttl"


def test_the_index_leaves_room_in_redis() -> None:
    assert RouterSettings().index_max_bytes <= 0.8 * REDIS_MAX_BYTES
