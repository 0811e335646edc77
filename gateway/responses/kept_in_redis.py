"""Responses in redis: one store for all gateways. The scripts do what ``MemoryResponses`` does, by redis' own clock.

Of all tenants together there are a hash of what is kept, by tenant and id, a set of the same by age, a set of tenants
by their bytes, and the bytes of all; they end with the last response. Of each tenant there is a set of ids by age,
which may outlive them. Text lies there as it is, sealed and not hidden.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from gateway.errors import too_many
from gateway.registry.line import RedisLine
from gateway.registry.names import RESPONSES
from gateway.registry.seal import opened, sealed
from gateway.responses.kept import BOUNDS, MOST_BYTES, Bounds, unreachable

SWEPT: Final = 64
"""Responses that are too old and go at once."""

MOST_OF_TENANT: Final = 256
"""Commands of a tenant that wait for redis at once: a sixteenth of what all have room for there."""

_COMMON: Final = """
local all, tenant, id, max_age = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local ages, sizes, total = all .. ':ages', all .. ':sizes', all .. ':total'
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local function drop(tenant, id)
  local name = tenant .. '/' .. id
  local size = redis.call('HSTRLEN', all, name)
  redis.call('ZREM', all .. ':of:' .. tenant, id)
  if redis.call('ZREM', ages, name) == 0 then return 0 end
  redis.call('HDEL', all, name)
  redis.call('DECRBY', total, size)
  if tonumber(redis.call('ZINCRBY', sizes, -size, tenant)) <= 0 then redis.call('ZREM', sizes, tenant) end
  return 1
end
local function old(name)
  local at = redis.call('ZSCORE', ages, name)
  return not at or now - tonumber(at) >= max_age
end
"""

PUT: Final = (
    _COMMON
    + """
local data, swept, most, most_bytes, most_all = ARGV[4], unpack(ARGV, 5)
for _, name in ipairs(redis.call('ZRANGEBYSCORE', ages, '-inf', now - max_age, 'LIMIT', 0, swept)) do
  drop(name:match('^(.-)/(.*)$'))
end
drop(tenant, id)
local own = all .. ':of:' .. tenant
redis.call('HSET', all, tenant .. '/' .. id, data)
redis.call('ZADD', ages, now, tenant .. '/' .. id)
redis.call('ZADD', own, now, id)
redis.call('ZINCRBY', sizes, #data, tenant)
redis.call('INCRBY', total, #data)
local function oldest(of) return redis.call('ZRANGE', all .. ':of:' .. of, 0, 0)[1] end
local function size(of) return tonumber(redis.call('ZSCORE', sizes, of) or '0') end
while redis.call('ZCARD', own) > tonumber(most) or size(tenant) > tonumber(most_bytes) do
  local first = oldest(tenant)
  if not first then break end
  drop(tenant, first)
end
while tonumber(redis.call('GET', total)) > tonumber(most_all) do
  local largest = redis.call('ZREVRANGE', sizes, 0, 0)[1]
  local first = largest and oldest(largest)
  if not first then break end
  drop(largest, first)
end
for _, key in ipairs({all, ages, sizes, total}) do redis.call('EXPIRE', key, max_age) end
redis.call('EXPIRE', own, 2 * max_age)
return 1
"""
)

GET: Final = (
    _COMMON
    + """
if old(tenant .. '/' .. id) then return {} end
return {redis.call('HGET', all, tenant .. '/' .. id)}
"""
)

DELETE: Final = (
    _COMMON
    + """
local known = not old(tenant .. '/' .. id)
return drop(tenant, id) == 1 and known and 1 or 0
"""
)


class RedisResponses:
    """The ``Responses`` of several gateways.

    Args:
        token: what all gateways share; it seals what is kept.
    """

    def __init__(self, line: RedisLine, token: str, bounds: Bounds = BOUNDS) -> None:
        self._line = line
        self._token = token
        self._bounds = bounds
        self._asking: Counter[str] = Counter()

    async def put(self, tenant: str, id: str, data: bytes) -> bool:
        if len(data) > MOST_BYTES or self._asking[tenant] >= MOST_OF_TENANT:
            return False
        most = self._bounds
        bounds = (SWEPT, most.responses, most.tenant_bytes, most.all_bytes)
        reply = await self._do(PUT, tenant, id, sealed(self._token, _purpose(tenant, id), data), *bounds)
        return bool(reply == 1)

    async def get(self, tenant: str, id: str) -> bytes | None:
        reply = await self._do(GET, tenant, id)
        if not isinstance(reply, list):
            raise unreachable()
        return opened(self._token, _purpose(tenant, id), reply[0], MOST_BYTES) if reply else None

    async def delete(self, tenant: str, id: str) -> bool:
        reply = await self._do(DELETE, tenant, id)
        if not isinstance(reply, int):
            raise unreachable()
        return reply == 1

    async def _do(self, script: str, tenant: str, id: str, *more: Any) -> Any:
        """Raises ``RequestError`` where too much of the tenant waits for redis already."""
        if self._asking[tenant] >= MOST_OF_TENANT:
            raise too_many("too many of your stored responses are being looked up; wait for some of them")
        self._asking[tenant] += 1
        asked = self._line.ask("EVAL", script, 1, RESPONSES, tenant, id, self._bounds.age_s, *more)
        asking = asyncio.ensure_future(asked)
        asking.add_done_callback(lambda _: self._answered(tenant))
        return await asyncio.shield(asking)  # Who hangs up takes nothing back: it waits there all the same.

    def _answered(self, tenant: str) -> None:
        self._asking[tenant] -= 1
        if not self._asking[tenant]:
            del self._asking[tenant]


def _purpose(tenant: str, id: str) -> str:
    return f"response\0{tenant}\0{id}"
