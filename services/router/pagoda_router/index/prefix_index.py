"""Asks Redis which leading blocks of a prompt lie where: one round trip for all workers.

Never waits longer than its limit, and not at all while Redis is known to be down.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from pagoda_router.errors import IndexUnavailableError
from pagoda_runtime.tasks.breaker import Breaker

# KEYS: the sets of every source. ARGV: the hashes in one string; the number of
# sets of each source; then for each group its source and the group whose run it continues (0: it
# starts at the first hash). A group's run goes on while any set of its source has the hash. Looks
# up in growing chunks, each chunk of each source at most once, so a miss at the start costs next to
# nothing and workers that share a kvstore share its answers.
_MATCH = """
local packed = ARGV[1]
local total = #packed / 16
local sources = {}
local key = 1
for num_sets in string.gmatch(ARGV[2], '%d+') do
  local source = {first = key, last = key + tonumber(num_sets) - 1, found = {}}
  sources[#sources + 1] = source
  key = source.last + 1
end

local chunks = {}
local begin, size = 0, 16
while begin < total do
  chunks[#chunks + 1] = {begin = begin, size = math.min(size, total - begin)}
  begin = begin + size
  size = math.min(size * 4, 1024)
end

local function lookup(source, number)
  local chunk = chunks[number]
  if not chunk.hashes then
    local hashes = {}
    for i = 1, chunk.size do
      local at = (chunk.begin + i) * 16
      hashes[i] = string.sub(packed, at - 15, at)
    end
    chunk.hashes = hashes
  end
  local found = redis.call('SMISMEMBER', KEYS[source.first], unpack(chunk.hashes))
  for other = source.first + 1, source.last do
    local more = redis.call('SMISMEMBER', KEYS[other], unpack(chunk.hashes))
    for i = 1, chunk.size do if more[i] == 1 then found[i] = 1 end end
  end
  source.found[number] = found
  return found
end

local runs = {}
for number, start in string.gmatch(ARGV[3], '(%d+):(%d+)') do
  local source = sources[tonumber(number)]
  local run = runs[tonumber(start)] or 0
  for number, chunk in ipairs(chunks) do
    local last = chunk.begin + chunk.size
    if run < last then
      local found = source.found[number] or lookup(source, number)
      while run < last and found[run - chunk.begin + 1] == 1 do run = run + 1 end
      if run < last then break end
    end
  end
  runs[#runs + 1] = run
end
return runs
"""


@dataclass(frozen=True, slots=True)
class SetGroup:
    """Sets that are searched together; `start` is an earlier group whose run it continues."""

    keys: tuple[str, ...]
    start: int | None = None


class PrefixIndex:
    """Reads the index."""

    def __init__(self, redis: Redis, *, timeout_seconds: float, breaker: Breaker) -> None:
        self._match = redis.register_script(_MATCH)
        self._timeout_seconds, self.breaker = timeout_seconds, breaker

    async def match(
        self, groups: Sequence[SetGroup], block_hashes: Sequence[bytes]
    ) -> tuple[int, ...]:
        """Return how many leading hashes each group holds.

        Raises:
            IndexUnavailableError: no answer within the limit, or Redis failed lately.
        """
        if not self.breaker.allows():
            raise IndexUnavailableError("the breaker is open: Redis failed lately")
        sources = {group.keys: None for group in groups}  # ordered, each once
        numbers = {keys: number for number, keys in enumerate(sources, start=1)}
        keys = [key for source in sources for key in source]
        arguments: list[bytes | str] = [
            b"".join(block_hashes),
            " ".join(str(len(source)) for source in sources),
            " ".join(
                f"{numbers[group.keys]}:{0 if group.start is None else group.start + 1}"
                for group in groups
            ),
        ]
        try:
            async with asyncio.timeout(self._timeout_seconds):
                runs = await self._match(keys=keys, args=arguments)
        except (RedisError, OSError, TimeoutError, RuntimeError) as error:
            # A RuntimeError is uvloop's, of a connection that has died unnoticed.
            self.breaker.record(has_succeeded=False)
            raise IndexUnavailableError(f"Redis did not answer: {error!r}") from error
        self.breaker.record(has_succeeded=True)
        return tuple(map(int, runs))
