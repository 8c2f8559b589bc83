"""A process that owns a shared KV pool, and does with it what a test asks for."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pagoda_engine.cache.peer_pool import PoolExport, PoolHandle, PoolKind, exportable_cache
from support.kv_pools import CPU, LAYOUT, fill

NUM_BLOCKS = 5


@dataclass
class PoolOwner:
    """The test's side."""

    process: "subprocess.Popen[str]"
    handle: PoolHandle

    def tell(self, command: str) -> None:
        """Have `command` done; returns when it was."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(command, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait(60) == -signal.SIGKILL


@contextlib.contextmanager
def pool_owner() -> Iterator[PoolOwner]:
    """Run an owner of a pool like ``fill(make_cache())``."""
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "support.pool_owner"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            fields = json.loads(process.stdout.readline())
            fields |= {"kind": PoolKind(fields["kind"]), "memory": fields["memory"].encode()}
            yield PoolOwner(process, PoolHandle(**fields))
        finally:
            process.kill()


def main() -> None:
    cache = fill(exportable_cache(LAYOUT, NUM_BLOCKS, CPU))
    export = PoolExport(cache)
    fields = asdict(export.handle)
    fields |= {"kind": export.handle.kind.value, "memory": export.handle.memory.decode()}
    print(json.dumps(fields), flush=True)
    for line in sys.stdin:
        if line == "close\n":
            export.close()
        elif line == "fill\n":
            fill(cache, seed=2)
        print("done", flush=True)


if __name__ == "__main__":
    main()
