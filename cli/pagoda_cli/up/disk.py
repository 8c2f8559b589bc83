"""How much of the home's disk the services of one stack may take, from what is free at the start.

NATS has no limit of its own: its streams have theirs, so a limit that shrank never stands in the
way of records that are there already.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagoda_cli.up.errors import DiskFullError
from pagoda_gateway.config import GatewaySettings
from pagoda_kvstore.config import KvstoreSettings
from pagoda_runtime.messaging import subjects

MIN_FREE_BYTES = 128 << 20
SHARE = 4  # a quarter each for usage records and KV blocks; the rest for events, logs, traces
OUTBOX_SHARE = 16  # for records that NATS does not take
FILE_SHARE = 8  # an eighth for files of batches, those that are there included
RESPONSE_SHARE = 16  # so for responses and conversations
SEGMENTS = 4  # the kvstore frees space by whole segments
_USAGE, _NVME = "PAGODA_GATEWAY_USAGE_LOG_BYTES", "PAGODA_KVSTORE_NVME_BYTES"
_OUTBOX = "PAGODA_GATEWAY_OUTBOX_BYTES"
_FILES = "PAGODA_GATEWAY_TOTAL_FILE_BYTES"
_RESPONSES = "PAGODA_GATEWAY_RESPONSE_STORE_BYTES"
_KVSTORE_NAMES = (_NVME, "PAGODA_KVSTORE_SEGMENT_BYTES", "PAGODA_KVSTORE_NVME_DIR")


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """What `pagoda up` chose for its services: variables, and the reason in one line."""

    variables: Mapping[str, str]
    explanation: str


def plan_disk(home: Path, environ: Mapping[str, str]) -> DiskPlan:
    """Share out what is free where `home` lies; what the user set stays as it is.

    Raises:
        DiskFullError: there is too little to begin with.
    """
    kvstore_bytes = sum(path.stat().st_size for path in (home / "kvstore").glob("*.seg"))
    free = shutil.disk_usage(home).free
    if free < MIN_FREE_BYTES:
        raise DiskFullError(home, free, MIN_FREE_BYTES)
    usage_bytes = min(_default(GatewaySettings, "usage_log_bytes"), free // SHARE)
    outbox_bytes = min(_default(GatewaySettings, "outbox_bytes"), free // OUTBOX_SHARE)
    nvme_bytes = min(_default(KvstoreSettings, "nvme_bytes"), (free + kvstore_bytes) // SHARE)
    segment_bytes = min(_default(KvstoreSettings, "segment_bytes"), nvme_bytes // SEGMENTS)
    ledger_bytes = sum(path.stat().st_size for path in home.glob("ledger.sqlite*"))
    in_ledger = free + ledger_bytes
    file_bytes = min(_default(GatewaySettings, "total_file_bytes"), in_ledger // FILE_SHARE)
    response_bytes = min(
        _default(GatewaySettings, "response_store_bytes"), in_ledger // RESPONSE_SHARE
    )
    variables = {
        _USAGE: str(usage_bytes), _OUTBOX: str(outbox_bytes), _FILES: str(file_bytes),
        _RESPONSES: str(response_bytes),
    }  # fmt: skip
    if not any(environ.get(name) for name in _KVSTORE_NAMES):
        variables |= {_NVME: str(nvme_bytes), "PAGODA_KVSTORE_SEGMENT_BYTES": str(segment_bytes)}
    names = (_USAGE, _NVME, _FILES, _RESPONSES)
    taken = {name: int(environ.get(name) or variables.get(name) or 0) for name in names}
    kv_text = _mib(taken[_NVME]) if taken[_NVME] else "what PAGODA_KVSTORE_* say"
    return DiskPlan(
        variables,
        f"{_mib(free)} are free in {home}; at most {_mib(taken[_USAGE])} of them for usage records "
        f"({_USAGE}), {_mib(subjects.KV_EVENTS_MAX_BYTES)} for events, {kv_text} for KV blocks "
        f"({_NVME}), {_mib(taken[_FILES])} for files of batches ({_FILES}), "
        f"{_mib(taken[_RESPONSES])} for responses ({_RESPONSES})",
    )


def _default(model: type[GatewaySettings | KvstoreSettings], field: str) -> int:
    return int(model.model_fields[field].default)


def _mib(num_bytes: int) -> str:
    return (
        f"{num_bytes / 2**20:.0f} MiB" if num_bytes < 10 << 30 else f"{num_bytes / 2**30:.0f} GiB"
    )
