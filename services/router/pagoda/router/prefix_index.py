"""Asks Redis which leading blocks of a prompt lie where: one round trip for all workers.

Never waits longer than its limit, and not at all while Redis is known to be down.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from pagoda.router import index_keys
from pagoda.router.breaker import Breaker
from pagoda.router.errors import IndexUnavailableError

# KEYS: the marker, then the sets of every group. ARGV: the hashes in one string; then for each
# group how many sets it has, and which group's run it starts from (0: from the first hash). A
# group's run goes on while any of its sets has the hash. Looks up in growing chunks, so a miss at
# the start costs next to nothing.
_MATCH = """
local packed = ARGV[1]
local total = #packed / 16
local hashes = {}
local runs = {}
local key = 2
for group = 1, (#ARGV - 1) / 2 do
  local num_sets = tonumber(ARGV[2 * group])
  local from = tonumber(ARGV[2 * group + 1])
  local run = from > 0 and runs[from] or 0
  local chunk = 16
  local is_running = true
  while is_running and run < total do
    local size = math.min(chunk, total - run)
    local args = {}
    for i = 1, size do
      local at = run + i
      if not hashes[at] then hashes[at] = string.sub(packed, at * 16 - 15, at * 16) end
      args[i] = hashes[at]
    end
    local found = redis.call('SMISMEMBER', KEYS[key], unpack(args))
    for other = 1, num_sets - 1 do
      local more = redis.call('SMISMEMBER', KEYS[key + other], unpack(args))
      for i = 1, size do if more[i] == 1 then found[i] = 1 end end
    end
    local hits = 0
    while hits < size and found[hits + 1] == 1 do hits = hits + 1 end
    run = run + hits
    is_running = hits == size
    chunk = math.min(chunk * 4, 1024)
  end
  runs[group] = run
  key = key + num_sets
end
runs[#runs + 1] = redis.call('EXISTS', KEYS[1])
return runs
"""


@dataclass(frozen=True, slots=True)
class SetGroup:
    """Sets that are searched together; `start` is an earlier group whose run it continues."""

    keys: tuple[str, ...]
    start: int | None = None


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """Length of the run of leading hashes for each group."""

    runs: tuple[int, ...]
    is_whole: bool  # False: Redis was wiped and the index is being rebuilt


class PrefixIndex:
    """Reads the index."""

    def __init__(self, redis: Redis, *, timeout_seconds: float, breaker: Breaker) -> None:
        self._match = redis.register_script(_MATCH)
        self._timeout_seconds, self.breaker = timeout_seconds, breaker

    async def match(self, groups: Sequence[SetGroup], block_hashes: Sequence[bytes]) -> IndexAnswer:
        """Return how many leading hashes each group holds.

        Raises:
            IndexUnavailableError: no answer within the limit, or Redis failed lately.
        """
        if not self.breaker.allows():
            raise IndexUnavailableError("the breaker is open: Redis failed lately")
        keys = [index_keys.MARKER, *(key for group in groups for key in group.keys)]
        arguments: list[bytes | int] = [b"".join(block_hashes)]
        for group in groups:
            arguments += [len(group.keys), 0 if group.start is None else group.start + 1]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                *runs, marker = await self._match(keys=keys, args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            self.breaker.record(has_succeeded=False)
            raise IndexUnavailableError(f"Redis did not answer: {error!r}") from error
        self.breaker.record(has_succeeded=True)
        return IndexAnswer(tuple(map(int, runs)), bool(marker))
