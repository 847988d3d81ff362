"""The Lua scripts of the Redis store: each verb that has to be atomic is one of them.

Owns what is written under which key (the list is :data:`KEYS`). Knows no Python object: rows,
records and bodies come and go as text, so no number passes through Lua's JSON. Every script reads
the server's clock itself and answers ``{milliseconds, ...}``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

__all__ = ["KEYS", "SCRIPTS", "Script"]

#: What stands behind each key; ``{root}`` is the one hash tag that all keys of a cluster share.
KEYS = """\
{root}                            (empty; names the slot of all the others)
{root}:claim:KIND:HOST:SLOT:NAME  hash    one claimable row: resolved, token, holder, expires, ...
{root}:claims:KIND                set     the rows there are of a kind (job, lock, once)
{root}:held                       set     the rows that have a holder
{root}:run:ID                     hash    one record of history: job, status, at, record (JSON)
{root}:runs:STATUS:JOB            zset    run ids by time; both parts may be empty and mean any
{root}:ranjobs                    set     the jobs that have history
{root}:doc:KIND:ID                hash    one document: body (JSON), revision, updated, deleted
{root}:docs:KIND                  zset    document ids by revision, traces of deleted ones included
{root}:traces:KIND                zset    traces of deleted documents by time; gone after a day
{root}:revision                   string  the cluster's revision
No key ever expires: an expired token or tick would let a run happen twice."""

_PRELUDE = """
local root = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function text(number) return string.format('%.0f', number) end
local stamp = text(now)
-- A request that lay in a stopped server's socket is no longer waited for: it must change nothing.
local deadline = tonumber(ARGV[1])
if deadline and now > deadline then return {now, 'late'} end
"""

_CLAIMS = """
local function fields(key)
  local flat = redis.call('HGETALL', key)
  if #flat == 0 then return nil end
  local found = {}
  for i = 1, #flat, 2 do found[flat[i]] = flat[i + 1] end
  return found
end
local function claim_key(name) return root .. ':claim:' .. name end
local function load(name) return fields(claim_key(name)) end
local function make(name)
  local kind = string.match(name, '^%a+')
  redis.call('HSET', claim_key(name), 'resolved', kind == 'job' and stamp or '0',
             'token', '0', 'hold_until', '0', 'rerun_attempt', '0')
  redis.call('SADD', root .. ':claims:' .. kind, name)
end
local function load_or_make(name)
  local row = load(name)
  if row then return row end
  make(name)
  return load(name)
end
-- Changes some fields of a row; '' and false take a field away.
local function change(name, changes)
  local put, drop = {}, {}
  for k, v in pairs(changes) do
    if v == false or v == '' then
      drop[#drop + 1] = k
    else
      put[#put + 1] = k
      put[#put + 1] = v
    end
  end
  if #put > 0 then redis.call('HSET', claim_key(name), unpack(put)) end
  if #drop > 0 then redis.call('HDEL', claim_key(name), unpack(drop)) end
end
local function answer_row(name) return {name, redis.call('HGETALL', claim_key(name))} end
local function holds(row, holder, token) return row and row.holder == holder and row.token == token end
local function free_place(name)
  redis.call('SREM', root .. ':held', name)
  return {holder = false, held_tick = false, since = false, expires = false, progress = false}
end
local function next_token(row) return text(math.max(tonumber(row.token) + 1, now)) end
"""

_RUNS = """
local function indexes(status, job)
  return {root .. ':runs::', root .. ':runs:' .. status .. ':',
          root .. ':runs::' .. job, root .. ':runs:' .. status .. ':' .. job}
end
local function run_key(id) return root .. ':run:' .. id end
local function forget_run(id)
  local old = redis.call('HMGET', run_key(id), 'status', 'job')
  if not old[1] then return false end
  for _, index in ipairs(indexes(old[1], old[2])) do redis.call('ZREM', index, id) end
  redis.call('DEL', run_key(id))
  if redis.call('EXISTS', root .. ':runs::' .. old[2]) == 0 then
    redis.call('SREM', root .. ':ranjobs', old[2])
  end
  return true
end
-- A record is five arguments: id, job, status, at, record; an empty id means none.
local function run_at(i)
  if ARGV[i] == '' then return nil end
  return {id = ARGV[i], job = ARGV[i + 1], status = ARGV[i + 2], at = ARGV[i + 3], record = ARGV[i + 4]}
end
local function write_run(run)
  forget_run(run.id)
  redis.call('HSET', run_key(run.id), 'job', run.job, 'status', run.status, 'at', run.at,
             'record', run.record)
  for _, index in ipairs(indexes(run.status, run.job)) do redis.call('ZADD', index, run.at, run.id) end
  redis.call('SADD', root .. ':ranjobs', run.job)
end
"""

_DOCS = """
local kind, id = ARGV[2], ARGV[3]
local key = root .. ':doc:' .. kind .. ':' .. id
local index, traces = root .. ':docs:' .. kind, root .. ':traces:' .. kind
local function current()
  local found = redis.call('HMGET', key, 'revision', 'deleted', 'op', 'updated')
  return {revision = found[1], living = found[1] and found[2] ~= '1', op = found[3], updated = found[4]}
end
-- Never below the clock: it grows even when the server lost its data, so owners see that it changed.
local function next_revision()
  local last = tonumber(redis.call('GET', root .. ':revision') or '0')
  local revision = text(math.max(last + 1, now))
  redis.call('SET', root .. ':revision', revision)
  return revision
end
local function sweep_traces()
  local old = redis.call('ZRANGEBYSCORE', traces, '-inf', '(' .. text(now - 2 * 86400000), 'LIMIT', 0, 100)
  for _, gone in ipairs(old) do
    redis.call('DEL', root .. ':doc:' .. kind .. ':' .. gone)
    redis.call('ZREM', index, gone)
    redis.call('ZREM', traces, gone)
  end
end
"""


@dataclass(frozen=True)
class Script:
    """One script by its text and its digest.

    :param guarded: it must change nothing when it arrives after its caller stopped waiting.
    """

    name: str
    text: str
    guarded: bool = False
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


# The DEL changes nothing: it makes a replica, a full disk or missing replicas refuse the poll as
# they would refuse a claim, so that an owner does not take a store for healthy that cannot be written.
_POLL = """
redis.call('DEL', root .. ':nothing')
local answer = {now, redis.call('GET', root .. ':revision') or '0'}
for _, name in ipairs(redis.call('SMEMBERS', root .. ':held')) do answer[#answer + 1] = answer_row(name) end
return answer
"""

_ENSURE = """
local answer = {now}
for i = 2, #ARGV do
  if redis.call('EXISTS', claim_key(ARGV[i])) == 0 then make(ARGV[i]) end
  answer[#answer + 1] = answer_row(ARGV[i])
end
return answer
"""

_ROWS = """
local answer = {now}
local function add(name)
  if redis.call('EXISTS', claim_key(name)) == 1 then answer[#answer + 1] = answer_row(name) end
end
if ARGV[2] == 'keys' then
  for i = 3, #ARGV do add(ARGV[i]) end
else
  for i = 3, #ARGV do
    for _, name in ipairs(redis.call('SMEMBERS', root .. ':claims:' .. ARGV[i])) do add(name) end
  end
end
return answer
"""

_CLAIM = """
local own_name, slot_name, holder, lease, tick = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local seen, rerun, hold, attempt, info = ARGV[7], ARGV[8] == '1', tonumber(ARGV[9]), ARGV[10], ARGV[11]
local own = load_or_make(own_name)
local name, place = own_name, own
if slot_name ~= '' then
  name = slot_name
  place = load_or_make(slot_name)
end
-- The same request again, after its first answer was lost on the way.
if place.holder == holder then return {now, 1, answer_row(name)} end
local due = tonumber(tick)
local good = not own.holder and not place.holder
  and tonumber(own.hold_until) <= now and tonumber(place.hold_until) <= now
  and (seen == '' or seen == own.resolved)
if due and rerun then
  good = good and own.rerun_tick == tick
elseif due then
  good = good and due <= now and due > tonumber(own.resolved) and not own.rerun_tick
end
if not good then return {now, 0, answer_row(own_name)} end

local token = next_token(own)
local settled = {token = token}
if due then
  settled.streak = false
  if rerun then
    settled.rerun_tick = false
  else
    settled.resolved = tick
    settled.rerun_attempt = '0'
  end
end
if hold > 0 then settled.hold_until = text(now + hold) end
local held = {holder = holder, token = token, since = stamp, expires = text(now + lease),
              held_tick = due and tick or stamp, info = info, attempt = attempt, progress = false}
if slot_name == '' then
  for k, v in pairs(settled) do held[k] = v end
else
  change(own_name, settled)
end
change(name, held)
redis.call('SADD', root .. ':held', name)
return {now, 1, answer_row(name)}
"""

_RENEW = """
local name, holder, token, lease, progress = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local row = load(name)
if not holds(row, holder, token) or tonumber(row.expires) <= now then return {now, -1} end
local expires = math.max(tonumber(row.expires), now + lease)
local changes = {expires = text(expires)}
if progress ~= '' then changes.progress = progress end
change(name, changes)
return {now, expires - now}
"""

_RELEASE = """
local name, own_name, op, holder, token = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local resolved, seen, done, run, skipped = ARGV[7], ARGV[8], ARGV[9] == '1', run_at(10), run_at(15)
local row = load(name)
-- The same request again, after its first answer was lost on the way.
if row and row.released == op then return {now, 1} end
if not holds(row, holder, token) or tonumber(row.expires) <= now then return {now, 0} end
local own = name == own_name and row or load_or_make(own_name)
local changes = {}
if run then
  write_run(run)
  changes.last_run = run.record
  if run.status == 'succeeded' then changes.last_success = stamp end
end
if resolved ~= '' and seen == own.resolved then
  if tonumber(resolved) > tonumber(own.resolved) then changes.resolved = resolved end
  if skipped then
    write_run(skipped)
    changes.streak = skipped.id
  end
end
if done then changes.resolved = stamp end
local freed = free_place(name)
freed.released = op
change(name, freed)
change(own_name, changes)
return {now, 1}
"""

_SETTLE = """
local name, op, seen, resolved, record = ARGV[2], ARGV[3], ARGV[4], ARGV[5], run_at(6)
local row = load(name)
if not row then return {now, 0} end
if row.settled == op then return {now, 1} end
if row.holder or row.resolved ~= seen then return {now, 0} end
if record then write_run(record) end
change(name, {resolved = resolved, streak = record and record.id or false, settled = op})
return {now, 1}
"""

_EXPIRE = """
local name, own_name, op, holder, token = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local rerun, forced, lost = ARGV[7] == '1', ARGV[8] == '1', run_at(9)
local row = load(name)
if row and row.expired == op then return {now, 1} end
if not holds(row, holder, token) or (not forced and tonumber(row.expires) > now) then return {now, 0} end
local own = name == own_name and row or load_or_make(own_name)
local changes = {}
if lost then
  if redis.call('EXISTS', run_key(lost.id)) == 0 then write_run(lost) end
  changes.last_run = lost.record
end
if rerun then
  changes.rerun_tick = row.held_tick
  changes.rerun_attempt = row.attempt or '1'
end
local higher = next_token(tonumber(own.token) > tonumber(row.token) and own or row)
changes.token = higher
local freed = free_place(name)
freed.token = higher
freed.expired = op
change(name, freed)
change(own_name, changes)
return {now, 1}
"""

_ADD_RUN = """
write_run(run_at(2))
return {now, 1}
"""

_RUN = """
return {now, redis.call('HGET', run_key(ARGV[2]), 'record') or ''}
"""

# Each index is read in its own order until it gave enough; the store merges them.
_HISTORY = """
-- By bytes, as the index sorts: Lua's own comparison depends on the server's locale.
local function below(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
local since, at, id, limit = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local answer = {now}
for i = 6, #ARGV do
  local offset, found = 0, 0
  repeat
    local page = redis.call('ZREVRANGEBYSCORE', root .. ':runs:' .. ARGV[i], at == '' and '+inf' or at,
                            since == '' and '-inf' or since, 'WITHSCORES', 'LIMIT', offset, limit)
    for j = 1, #page, 2 do
      if found < limit and (at == '' or tonumber(page[j + 1]) < tonumber(at) or below(page[j], id)) then
        found = found + 1
        answer[#answer + 1] = redis.call('HGET', run_key(page[j]), 'record')
      end
    end
    offset = offset + limit
  until found == limit or #page < 2 * limit
end
return answer
"""

_PRUNE = """
local before, keep, limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local deleted = 0
local old = redis.call('ZRANGEBYSCORE', root .. ':runs::', '-inf', '(' .. before, 'LIMIT', 0, limit)
for _, id in ipairs(old) do
  forget_run(id)
  deleted = deleted + 1
end
for _, job in ipairs(redis.call('SMEMBERS', root .. ':ranjobs')) do
  local index = root .. ':runs::' .. job
  local excess = math.min(redis.call('ZCARD', index) - keep, limit - deleted)
  if excess > 0 then
    for _, id in ipairs(redis.call('ZRANGE', index, 0, excess - 1)) do
      forget_run(id)
      deleted = deleted + 1
    end
  end
end
return {now, deleted}
"""

_DOCS_LIST = """
local kind, since = ARGV[2], ARGV[3]
local answer = {now}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', root .. ':docs:' .. kind,
                               since == '0' and '-inf' or '(' .. since, '+inf')) do
  local doc = redis.call('HMGET', root .. ':doc:' .. kind .. ':' .. id,
                         'body', 'revision', 'updated', 'deleted')
  if since ~= '0' or doc[4] ~= '1' then
    answer[#answer + 1] = {id, doc[1], doc[2], doc[3], doc[4] or ''}
  end
end
return answer
"""

_DOC = """
local doc = redis.call('HMGET', root .. ':doc:' .. ARGV[2] .. ':' .. ARGV[3],
                       'body', 'revision', 'updated', 'deleted')
if not doc[1] or doc[4] == '1' then return {now} end
return {now, {ARGV[3], doc[1], doc[2], doc[3], ''}}
"""

_PUT = """
local expect, quiet, op, body = ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[7]
local doc = current()
if doc.living and doc.op == op then return {now, {id, body, doc.revision, doc.updated, ''}} end
if expect == '0' and doc.living then return {now} end
if expect ~= '' and expect ~= '0' and not (doc.living and doc.revision == expect) then return {now} end
local revision = quiet and (doc.living and doc.revision or '0') or next_revision()
redis.call('HSET', key, 'body', body, 'revision', revision, 'updated', stamp, 'op', op)
redis.call('HDEL', key, 'deleted')
redis.call('ZADD', index, revision, id)
redis.call('ZREM', traces, id)
return {now, {id, body, revision, stamp, ''}}
"""

_DELETE = """
local expect, quiet, op = ARGV[4], ARGV[5] == '1', ARGV[6]
local doc = current()
if not doc.living and doc.op == op then return {now, 1} end
if not doc.living or (expect ~= '' and doc.revision ~= expect) then return {now, 0} end
if quiet then
  redis.call('DEL', key)
  redis.call('ZREM', index, id)
else
  local revision = next_revision()
  redis.call('HSET', key, 'body', '{}', 'revision', revision, 'updated', stamp, 'deleted', '1', 'op', op)
  redis.call('ZADD', index, revision, id)
  redis.call('ZADD', traces, now, id)
end
sweep_traces()
return {now, 1}
"""

#: Every script by its name.
SCRIPTS = {
    script.name: script
    for script in (
        Script("poll", _PRELUDE + _CLAIMS + _POLL),
        Script("ensure", _PRELUDE + _CLAIMS + _ENSURE),
        Script("rows", _PRELUDE + _CLAIMS + _ROWS),
        Script("claim", _PRELUDE + _CLAIMS + _CLAIM, guarded=True),
        Script("renew", _PRELUDE + _CLAIMS + _RENEW),
        Script("release", _PRELUDE + _CLAIMS + _RUNS + _RELEASE),
        Script("settle", _PRELUDE + _CLAIMS + _RUNS + _SETTLE, guarded=True),
        Script("expire", _PRELUDE + _CLAIMS + _RUNS + _EXPIRE, guarded=True),
        Script("add_run", _PRELUDE + _RUNS + _ADD_RUN),
        Script("run", _PRELUDE + _RUNS + _RUN),
        Script("history", _PRELUDE + _RUNS + _HISTORY),
        Script("prune", _PRELUDE + _RUNS + _PRUNE),
        Script("docs", _PRELUDE + _DOCS_LIST),
        Script("doc", _PRELUDE + _DOC),
        Script("put", _PRELUDE + _DOCS + _PUT, guarded=True),
        Script("delete", _PRELUDE + _DOCS + _DELETE, guarded=True),
    )
}
