"""Uses of keys are gathered and written together."""

import pytest
from sqlalchemy.exc import OperationalError
from support.clocks import Now

from pagoda_gateway.accounts.key_use import KeyUse


class Written(list[dict[str, float]]):
    """What was written; fails on demand."""

    error: Exception | None = None

    async def write(self, used: dict[str, float]) -> None:
        if self.error is not None:
            raise self.error
        self.append(used)


async def test_many_uses_are_one_write() -> None:
    written, now = Written(), Now()
    use = KeyUse(written.write, clock=now)
    for _ in range(100):
        now.seconds += 1
        use.note("key-1")
    use.note("key-2")
    assert written == []
    await use.flush()
    await use.flush()  # nothing new
    assert written == [{"key-1": now.seconds, "key-2": now.seconds}]


@pytest.mark.parametrize("error", [TimeoutError(), OperationalError("update", {}, OSError())])
async def test_a_write_that_fails_harms_nobody(error: Exception) -> None:
    written = Written()
    use = KeyUse(written.write)
    use.note("key-1")
    written.error = error
    await use.flush()
    written.error = None
    use.note("key-2")
    await use.flush()
    assert [list(used) for used in written] == [["key-2"]]
