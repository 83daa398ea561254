"""Our scripts in Lua 5.4, as Dragonfly has it, with a Redis server for what they call.

The server has Lua 5.1. So the scripts run here, and each of their calls goes to the server. The
library `struct`, which Redis and Dragonfly have, is what 5.4 has itself under other names.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1

import redis
from lupa.lua54 import LuaRuntime, lua_type

from scrapy_bloom.redis.client import Target

_PRELUDE = r"""
local send = ...
unpack = nil  -- as in 5.4
struct = {unpack = function(format, text, at)
  return string.unpack(format:gsub('s', 'z'), text, at)
end, pack = string.pack}
local function run(pcall, ...)
  local answer, problem = send(...)
  if problem then
    if pcall then return {err = problem} end
    error({err = problem})
  end
  return answer
end
redis = {
  call = function(...) return run(false, ...) end,
  pcall = function(...) return run(true, ...) end,
}
-- Reading a name that nobody has set is an error there.
setmetatable(_G, {__index = function(_, name) error('nonexistent global ' .. name) end})
return function(source)
  KEYS, ARGV = nil, nil
  return load(source)
end
"""


@dataclass(frozen=True)
class Lua54Target(Target):
    """A server whose scripts run in Lua 5.4."""

    def connect(self, timeout):
        return Lua54Client(super().connect(timeout))


class Lua54Client:
    """A client that runs scripts by itself, and leaves everything else to another one."""

    def __init__(self, client):
        self._client = client
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._globals = self._lua.globals()
        load = self._lua.execute(_PRELUDE.encode(), self._send)
        self._load = load
        self._scripts = {}

    def __getattr__(self, name):
        return getattr(self._client, name)

    def register_script(self, source):
        """Return what runs a script, as redis-py does."""
        return lambda names, arguments: self.execute_command(
            "EVAL", source, len(names), *names, *arguments
        )

    def execute_command(self, name, *arguments):
        if name == "EVALSHA" and arguments[0] not in self._scripts:
            raise redis.exceptions.NoScriptError
        if name not in {"EVAL", "EVALSHA"}:
            return self._client.execute_command(name, *arguments)
        source, count, *rest = arguments
        texts = [one if isinstance(one, bytes) else str(one).encode() for one in rest]
        if name == "EVAL":
            script = self._load(source.encode())
            self._scripts[sha1(source.encode()).hexdigest()] = script
        else:
            script = self._scripts[source]
        self._globals[b"KEYS"] = self._lua.table_from(texts[:count])
        self._globals[b"ARGV"] = self._lua.table_from(texts[count:])
        return self._to_reply(script())

    def _send(self, *words):
        texts = [word if isinstance(word, bytes) else b"%.17g" % word for word in words]
        try:
            reply = self._raw(texts)
        except redis.ResponseError as error:
            return None, str(error).encode()
        return self._to_lua(reply), None

    def _raw(self, texts):
        pool = self._client.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_command(*texts)
            return connection.read_response()
        finally:
            pool.release(connection)

    def _to_lua(self, reply):
        if reply is None:
            return False
        if isinstance(reply, list):
            return self._lua.table_from([self._to_lua(one) for one in reply])
        if reply in {b"none", b"hash", b"string", b"set"}:  # of TYPE: a status
            return self._lua.table_from({b"ok": reply})
        return reply

    def _to_reply(self, answer):
        if lua_type(answer) != "table":
            return answer
        if answer[b"err"] is not None:
            raise redis.ResponseError(answer[b"err"].decode())
        values = []
        while (value := answer[len(values) + 1]) is not None:
            values.append(self._to_reply(value))
        return values
