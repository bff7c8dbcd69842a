--! exports MINUTE NAMESPACES keys_key use_key used_key rank_key note_usage settle_usage settle_some
--! needs last_for text
-- The limiter's keys, @keys:<namespace>:{key} (see sends.lua), and their usage, for limiters that count it.
--   @keys:<namespace>:{key}              hash field u: the uses that are not settled yet, see used_now.lua
--   @use:<namespace>:{key}               hash: total, held, first, last, lasts (when it expires, µs); minute -> sends
--   @used:<namespace>                    hash minute -> sends of all keys
--   @ranks:<namespace>:live              zset key -> the ten minutes of its uses that are not settled yet
--   @ranks:<namespace>:total|held|last   zset key -> how many, or µs of the last request
--   @ranks:<namespace>:<tens of minutes> zset key -> sends in these ten minutes
--   @namespaces                          zset namespace -> µs of a use
-- A use is counted in field u, in the same write as the sends. To settle a key is to add its uses of ten minutes to the
-- other keys. A key is settled at its next use, at a use of another key of the namespace, or before its usage is read.
-- In a cluster keys are at many nodes: the namespace is '', the prefix is the key's own, and only @keys and @use exist.
-- All usage expires `keep` after a key's last use. One settlement in four drops a few idle keys from the ranks.
local MINUTE = 60000000
local NAMESPACES = '@namespaces'
local MAX_IDLE, RATED, UNUSED = 4, 8, 34560000000000 -- unused: 400 days
local U, ENTRIES = '>I7I4I7I7I7I7', 40 -- see used_now.lua
local call, floor = redis.call, math.floor
local pack, unpack, all = struct.pack, struct.unpack, unpack

local function keys_key(namespace, key) return '@keys:' .. namespace .. ':{' .. key .. '}' end
local function use_key(namespace, key) return '@use:' .. namespace .. ':{' .. key .. '}' end
local function used_key(namespace) return '@used:' .. namespace end
local function rank_key(namespace, by) return '@ranks:' .. namespace .. ':' .. by end

-- forget_minutes: deletes the minutes before µs `before` from a hash.
local function forget_minutes(hash, before)
  local old = {}
  for _, field in ipairs(call('HKEYS', hash)) do
    local minute = tonumber(field)
    if minute and minute * MINUTE < before then old[#old + 1] = field end
  end
  for i = 1, #old, 500 do call('HDEL', hash, all(old, i, math.min(i + 499, #old))) end
end

local function forget_idle(namespace, before)
  local idle = call('ZRANGEBYSCORE', rank_key(namespace, 'last'), '-inf', text(before), 'LIMIT', 0, MAX_IDLE)
  if #idle == 0 then return end
  for _, by in ipairs({'last', 'total', 'held'}) do call('ZREM', rank_key(namespace, by), all(idle)) end
end

-- renew: the first use of a minute renews the keys of the namespace.
local function renew(namespace, now, keep)
  local lasts = text(math.ceil((keep + MINUTE) / 1000))
  forget_minutes(used_key(namespace), now - keep)
  call('PEXPIRE', used_key(namespace), lasts)
  for _, by in ipairs({'last', 'total', 'held'}) do call('PEXPIRE', rank_key(namespace, by), lasts) end
  call('ZADD', NAMESPACES, text(now), namespace)
  call('ZREMRANGEBYSCORE', NAMESPACES, '-inf', text(now - UNUSED))
end

-- rank: the part of *settle* that writes ranks. is_first: the first use of a minute, or a use that was held.
local function rank(namespace, key, tens, sum, total, held, asked, now, keep, is_first)
  if sum > 0 then
    call('ZADD', rank_key(namespace, 'total'), total, key)
    if tens > floor(now / (10 * MINUTE)) - RATED then
      call('ZINCRBY', rank_key(namespace, text(tens)), text(sum), key)
      if is_first then call('PEXPIRE', rank_key(namespace, text(tens)), text(RATED * 10 * MINUTE / 1000)) end
    end
  end
  if held then call('ZADD', rank_key(namespace, 'held'), held, key) end
  call('ZADD', rank_key(namespace, 'last'), text(asked), key)
  if is_first then renew(namespace, now, keep) end
  if asked % 4 == 0 then forget_idle(namespace, now - keep) end -- one call in four, by chance
end

-- settle: adds the uses in field u to the other keys.
local function settle(namespace, key, u, now)
  local keep, tens, first, last, asked, held = unpack(U, u)
  local use, names, sum = use_key(namespace, key), {'total', 'held', 'first', 'lasts'}, 0
  if asked + keep <= now then return end
  for n = ENTRIES, #u, 11 do names[#names + 1] = text((unpack('>I4', u, n))) end
  local known = call('HMGET', use, all(names))
  local fields, counts, is_first = {}, {}, held > 0
  for n = 5, #names do
    local _, count = unpack('>I4I7', u, ENTRIES + 11 * (n - 5))
    sum = sum + count
    counts[names[n]] = (counts[names[n]] or known[n] or 0) + count -- u has a minute twice if the clock was set back
    fields[#fields + 1], fields[#fields + 2] = names[n], text(counts[names[n]])
    if namespace ~= '' then
      is_first = call('HINCRBY', used_key(namespace), names[n], text(count)) == count or is_first
    end
  end
  local total = text((known[1] or 0) + sum)
  if sum > 0 then
    for _, each in ipairs({'total', total, 'last', text(last), 'first', known[3] or text(first)}) do
      fields[#fields + 1] = each
    end
  end
  held = held > 0 and text((known[2] or 0) + held)
  if held then fields[#fields + 1], fields[#fields + 2] = 'held', held end
  local renewed = not known[4] or known[4] - now < keep
  if renewed then fields[#fields + 1], fields[#fields + 2] = 'lasts', text(now + keep + floor(keep / 8)) end
  call('HSET', use, all(fields))
  if renewed then
    if known[4] then forget_minutes(use, now - keep) end
    call('PEXPIRE', use, text(math.ceil((keep + keep / 8) / 1000)))
  end
  if namespace ~= '' then rank(namespace, key, tens, sum, total, held, asked, now, keep, is_first) end
end

-- settle_usage: settles a key's uses, if there are any; deletes the key if no rule needs its sends.
local function settle_usage(namespace, key, now)
  local name = keys_key(namespace, key)
  local found = call('HMGET', name, 'u', 'h')
  if namespace ~= '' then call('ZREM', rank_key(namespace, 'live'), key) end
  if not found[1] or unpack('>I7', found[1]) == 0 then return end
  settle(namespace, key, found[1], now)
  local till, horizon = 0, 0
  if found[2] then till, horizon = unpack('>I7I7', found[2], #found[2] - 43) end
  if till + horizon <= now then
    call('DEL', name)
  else
    call('HDEL', name, 'u')
    call('PEXPIRE', name, text(math.ceil((till + horizon - now) / 1000) + 1))
  end
end

-- settle_some: settles up to `most` keys that were used no later than in these ten minutes; returns how many.
local function settle_some(namespace, tens, most, now)
  local live = call('ZRANGEBYSCORE', rank_key(namespace, 'live'), '-inf', tens, 'LIMIT', 0, most)
  for _, key in ipairs(live) do settle_usage(namespace, key, now) end
  return #live
end

-- note_usage: counts a use of a key: a send of `cost`, or a hold if cost is nil. The first use in ten minutes is
-- settled at once, so that keys that are seldom used cost no more; used_now counts the others in field u. Without
-- used_now, each use is settled at once: if the key keeps no sends, or if the caller has written field u.
local function note_usage(namespace, name, key, u, cost, now, keep, used_now)
  local known, of, tens = 0, nil, floor(now / (10 * MINUTE))
  if u then known, of = unpack('>I7I4', u) end
  if of ~= tens or not used_now then
    if known > 0 then settle_usage(namespace, key, now) end
    settle(namespace, key, pack(U, keep, tens, cost and now or 0, cost and now or 0, now, cost and 0 or 1)
      .. (cost and pack('>I4I7', floor(now / MINUTE), cost) or ''), now)
    if used_now then call('HSET', name, 'u', used_now(false, now)) end
    return
  end
  if known == 0 then
    local lasts, live = text(math.ceil((keep + 20 * MINUTE) / 1000)), rank_key(namespace, 'live')
    u = pack(U, keep, tens, 0, 0, 0, 0)
    last_for(name, lasts) -- the rules, or a block, may need the key for longer
    if namespace ~= '' then
      call('ZADD', live, text(tens), key)
      last_for(live, lasts)
      settle_some(namespace, text(tens - 1), 2, now)
    end
  end
  call('HSET', name, 'u', used_now(u, now, cost))
end
