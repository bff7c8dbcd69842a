-- forget: deletes what Redis keeps of a user, save jobs that wait or are in flight; one page for each call.
-- ARGV a FORGET, see records.py, and the configured categories
-- returns {cursor of the next page in this place, '0' at its end; further places to look through after it}
--! first_write
--! needs backlog_key backlogs_key drop_hold drop_sends hide in_flight job_key LANES leave_lane now_us
--! needs remember SENDS
local now, user, sends = now_us(ARGV[FORGET.clock]), ARGV[FORGET.user], ARGV[FORGET.sends]
local place, cursor, most = ARGV[FORGET.place], ARGV[FORGET.cursor], tonumber(ARGV[FORGET.at_once])
local KEYSPACE, KEYS_AT_ONCE = 'keys', 4
local BESIDE = {'@collapse:', '@history:'} -- keys of the user that record no sends
local WHOSE = '{' .. user .. '}'
local STREAMS = {'@feedback', '@events', '@trace', '@actions:users', '@actions'}

local function of_user(text_of_meta)
  local ok, meta = pcall(cjson.decode, text_of_meta or '')
  return ok and type(meta) == 'table' and meta.user == user
end

-- forget_backlogs: deletes the wake-ups of a user whose backlogs are empty, the user's entries at routes, a pause, and
-- the fields beside the backlogs: else they name the user until a worker looks. Deletes nothing if a new job has come
-- meanwhile, or if an orphan is in flight.
local function forget_backlogs()
  local fields = redis.call('HGETALL', backlogs_key(user))
  for i = 1, #fields, 2 do
    local name = fields[i]
    if name:sub(1, 3) == '#o:' then return end -- see orphans.lua
    if name:sub(1, 1) ~= '#' and redis.call('EXISTS', backlog_key(user, name)) == 1 then return end
  end
  for _, lane in ipairs(LANES) do leave_lane(user, lane) end
  redis.call('DEL', backlogs_key(user))
  drop_hold('user:' .. user)
end

-- scope_of: ':<category>' of a key '<first>{user}:<category>', '' of '<first>{user}', or false.
local function scope_of(key, first)
  local whole = first .. WHOSE
  local of = key:sub(1, #whole) == whole and key:sub(#whole + 1)
  return of and (of == '' or of:find('^:[a-z0-9][a-z0-9_-]*$')) and of
end

local function begin()
  local places = {KEYSPACE}
  if sends == 'delete' then remember(user) end
  redis.call('DEL', '@arriving:' .. WHOSE, '@tagged:' .. WHOSE) -- only here: later pages would delete new arrivals
  forget_backlogs()
  for _, lane in ipairs(LANES) do
    places[#places + 1] = '@rq:failed:' .. lane
    places[#places + 1] = '@rq:canceled:' .. lane
  end
  for _, stream in ipairs(STREAMS) do places[#places + 1] = stream end
  return {'0', places}
end

-- forget_ended: deletes the user's ended jobs in a registry of RQ's.
local function forget_ended()
  local found = redis.call('ZSCAN', place, cursor, 'COUNT', most)
  for i = 1, #found[2], 2 do
    local id = found[2][i]
    local job = redis.pcall('HMGET', job_key(id), 'meta', 'push_permit', 'push_outcome')
    if not job.err and job[3] and not job[2] and of_user(job[1]) then
      redis.call('ZREM', place, id)
      redis.call('DEL', job_key(id), '@rq:results:' .. id)
    end
  end
  return {found[1], {}}
end

-- names_user: whether a stream's entry is about the user: by a field, or by the meta of a job. In the log of actions
-- only a pause, 'user:ann', and a cancel of a user, 'ann category chat', name users; other names may look alike.
local function names_user(fields)
  local entry = {}
  for i = 1, #fields, 2 do entry[fields[i]] = fields[i + 1] end
  if place ~= '@actions' then return entry.user == user or entry.of == user or of_user(entry.meta) end
  local of = entry.action == 'cancel of user' and (entry.of or '') .. ' ' or ''
  return of:sub(1, #user + 1) == user .. ' ' or entry.of == 'user:' .. user
end

local function forget_entries()
  local entries = redis.call('XRANGE', place, cursor == '0' and '-' or '(' .. cursor, '+', 'COUNT', most)
  for _, entry in ipairs(entries) do
    if names_user(entry[2]) then redis.call('XDEL', place, entry[1]) end
  end
  return {#entries == most and entries[#entries][1] or '0', {}}
end

-- is_dedupe: whether a key is a dedupe key of the user. Such a key has the number of characters of the user's name.
local function is_dedupe(key)
  local characters = select(2, user:gsub('[^\128-\191]', ''))
  local whole = '@dedupe:' .. characters .. ':' .. WHOSE .. ':'
  return key:sub(1, #whole) == whole
end

-- drop: deletes a key of sends; *drop_sends* keeps those in flight. of: of *scope_of*.
local function drop(key, kind, of)
  if kind ~= 'sent' then return redis.call('DEL', key) end
  local categories = of == '' and {unpack(ARGV, FORGET.n + 1)} or {of:sub(2)}
  drop_sends(key, in_flight(user, categories), now)
end

local function forget_key(key)
  if is_dedupe(key) then redis.call('DEL', key) end
  for _, first in ipairs(BESIDE) do
    if scope_of(key, first) then redis.call('DEL', key) end
  end
  for kind, first in pairs(SENDS) do
    local of = scope_of(key, first)
    if of and sends == 'delete' then drop(key, kind, of) end
    if of and sends == 'hide' then hide(user, kind, of, ARGV[FORGET.salt], now) end
  end
end

-- forget_keys: looks through all keys, as nobody can name dedupe keys and keys of categories that are not configured.
local function forget_keys()
  local found = redis.call('SCAN', cursor, 'COUNT', KEYS_AT_ONCE * most)
  for _, key in ipairs(found[2]) do
    if key:find(WHOSE, 1, true) then forget_key(key) end
  end
  return {found[1], {}}
end

if place == '' then return begin() end
if place == KEYSPACE then return forget_keys() end
if place:find('@rq:', 1, true) == 1 then return forget_ended() end
return forget_entries()
