"""What tenants have had, in redis: one store for all gateways. The scripts do what ``Bucket`` and ``Standing`` do.

Of each tenant there is one hash: ``r`` and ``t`` with a second hold the requests and tokens taken in it, ``o`` with a
gateway's id the requests that are open there, which count while that gateway is known. The clock is redis' own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.limits.bucket import PERIOD_S, Bucket
from gateway.limits.limiter import MemoryStore, Taken
from gateway.limits.limits import Limits, Standing
from gateway.registry.line import RedisLine
from gateway.registry.names import GATEWAY, LIMIT

KEPT_S: Final = 2 * 3600
"""A tenant that has asked nothing for so long has nothing open."""

MOST_RESTATED: Final = 2048
"""Tenants of whom it is said again what they have open, the latest: more would not get to redis at once."""

TAKE: Final = """
local period, me, mine = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local requests, tokens, concurrent = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local wanted, alive, kept = tonumber(ARGV[7]), ARGV[8], ARGV[9]
local time = redis.call('TIME')
local second = tonumber(time[1])
local used, open, told = {r = 0, t = 0}, 0, {}
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  local name, amount = fields[at], tonumber(fields[at + 1])
  local kind, of = name:sub(1, 1), name:sub(2)
  if kind == 'o' then
    if of ~= me then
      if redis.call('EXISTS', alive .. of) == 1 then open = open + amount else redis.call('HDEL', KEYS[1], name) end
    end
  elseif math.abs(tonumber(of) - second) <= period then
    used[kind] = used[kind] + amount
    told[#told + 1] = name
    told[#told + 1] = amount
  else
    redis.call('HDEL', KEYS[1], name)
  end
end
local granted = (requests == 0 or used.r < requests) and (tokens == 0 or used.t + wanted <= tokens)
  and (concurrent == 0 or open + mine <= concurrent)
if granted then
  if requests > 0 then redis.call('HINCRBY', KEYS[1], 'r' .. second, 1) end
  if tokens > 0 then redis.call('HINCRBY', KEYS[1], 't' .. second, wanted) end
  redis.call('HSET', KEYS[1], 'o' .. me, mine)
  redis.call('EXPIRE', KEYS[1], kept)
end
return {granted and 1 or 0, second, tonumber(time[2]), open, told}
"""

SETTLE: Final = """
local period, me, mine = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local second, more, request = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7] or '0')
local now = tonumber(redis.call('TIME')[1])
if mine > 0 then redis.call('HSET', KEYS[1], 'o' .. me, mine) else redis.call('HDEL', KEYS[1], 'o' .. me) end
if math.abs(second - now) <= period then
  local had = tonumber(redis.call('HGET', KEYS[1], 't' .. ARGV[4]) or '0')
  if more ~= 0 then redis.call('HSET', KEYS[1], 't' .. ARGV[4], math.max(0, had + more)) end
  local asked = tonumber(redis.call('HGET', KEYS[1], 'r' .. ARGV[4]) or '0')
  if request ~= 0 and asked > 0 then redis.call('HSET', KEYS[1], 'r' .. ARGV[4], asked - request) end
elseif more > 0 then
  redis.call('HINCRBY', KEYS[1], 't' .. now, more)
end
redis.call('EXPIRE', KEYS[1], ARGV[6])
"""


class RedisStore:
    """The ``Store`` of several gateways; where redis is gone each goes on from what it has granted itself.

    Args:
        gateway: this one's id.
    """

    def __init__(self, line: RedisLine, gateway: str, memory: MemoryStore) -> None:
        self._line = line
        self._gateway = gateway
        self._memory = memory

    async def take(self, tenant: str, limits: Limits, tokens: int, mine: int) -> Taken:
        numbers = (limits.requests, limits.tokens, limits.concurrent, tokens)
        asked = (PERIOD_S, self._gateway, mine, *numbers, GATEWAY, KEPT_S)
        found = read_taken(await self._line.ask("EVAL", TAKE, 1, LIMIT + tenant, *asked), mine)
        if found is None:
            return self._memory.taken(tenant, limits, tokens, mine)
        granted, standing = found
        if not granted:
            return Taken(False, standing)
        return Taken(
            True, standing, self._memory.note(tenant, limits, tokens), shared_second=standing.take(limits, tokens)
        )

    def settle(self, tenant: str, taken: Taken, more: int, mine: int, counts: bool = True) -> None:
        self._memory.settle(tenant, taken, more, mine, counts)
        if taken.shared_second is None:
            self.restate(tenant, mine)
        else:
            self._settle(tenant, mine, taken.shared_second, more, int(not counts))

    def restate(self, tenant: str, mine: int) -> None:
        self._settle(tenant, mine, 0, 0)

    def restate_all(self, mine: Mapping[str, int]) -> None:
        """Say it of all, where redis is back: of those too whose last request has ended while it was gone."""
        for tenant in {*mine, *self._memory.latest(MOST_RESTATED)}:
            self.restate(tenant, mine.get(tenant, 0))

    def _settle(self, tenant: str, mine: int, second: int, more: int, requests: int = 0) -> None:
        said = (PERIOD_S, self._gateway, mine, second, more, KEPT_S, requests)
        self._line.post("EVAL", SETTLE, 1, LIMIT + tenant, *said)


def read_taken(reply: Any, mine: int) -> tuple[bool, Standing] | None:
    """What ``TAKE`` has returned; None where there was no answer, or it is none."""
    try:
        granted, second, microseconds, open_elsewhere, told = reply
        taken: dict[bytes, dict[int, int]] = {b"r": {}, b"t": {}}
        for name, amount in zip(told[::2], told[1::2], strict=True):
            taken[name[:1]][int(name[1:])] = int(amount)
        now = int(second) + int(microseconds) / 1e6
        return granted == 1, Standing(now, Bucket(taken[b"r"]), Bucket(taken[b"t"]), int(open_elsewhere) + mine)
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
