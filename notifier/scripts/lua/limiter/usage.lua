--! exports MINUTE NAMESPACES keys_key use_key used_key rank_key note_usage settle_usage settle_some
--! needs last_for text
-- The limiter's keys, @keys:<namespace>:{key} (see sends.lua), and what is known of their use where a namespace asks.
--   @keys:<namespace>:{key}              hash field u: what was used lately, see used_now.lua; until it is settled
--   @use:<namespace>:{key}               hash: total, held, first, last, until when it lasts (µs); minute -> how many
--   @used:<namespace>                    hash minute -> how many of all keys
--   @ranks:<namespace>:live              zset key -> ten minutes in which it was used, and which are not settled
--   @ranks:<namespace>:total|held|last   zset key -> how many, or µs of the last use
--   @ranks:<namespace>:<tens of minutes> zset key -> how many in these ten minutes
--   @namespaces                          zset namespace -> µs of a use
-- A use is counted beside the sends, in the same write. What ten minutes had is settled, which means that the other
-- keys get to know it: with the key's next use, with that of another key of the namespace, or before it is read.
-- In a cluster keys are at many nodes: there is no namespace, the prefix is a key's own, and only @keys and @use are.
-- All of it goes `keep` after a key's last use; a few that have gone idle leave the ranks with each use of another.
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

-- forget_minutes: drops what a hash of minutes holds from before µs `before`.
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

-- renew: the first use of a minute renews what the namespace keeps.
local function renew(namespace, now, keep)
  local lasts = text(math.ceil((keep + MINUTE) / 1000))
  forget_minutes(used_key(namespace), now - keep)
  call('PEXPIRE', used_key(namespace), lasts)
  for _, by in ipairs({'last', 'total', 'held'}) do call('PEXPIRE', rank_key(namespace, by), lasts) end
  call('ZADD', NAMESPACES, text(now), namespace)
  call('ZREMRANGEBYSCORE', NAMESPACES, '-inf', text(now - UNUSED))
end

-- rank: what the other keys of the namespace get to know of a use, beside *settle*. is_first: of a minute.
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
  if asked % 4 == 0 then forget_idle(namespace, now - keep) end -- so often, by chance
end

-- settle: takes what was used lately to the other keys. u: the field.
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
    counts[names[n]] = (counts[names[n]] or known[n] or 0) + count -- twice there, where the clock was set back
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

-- settle_usage: settles what was used of a key lately, if anything was; the sends go when nobody asks for them.
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

-- note_usage: a key was asked for `cost`, and got it, or (nil) was held. The first use in ten minutes is settled at
-- once, so that keys that are used seldom cost no more for it; the others are counted in its field u, by used_now. Of a
-- key of which nothing is kept all is settled: it has no used_now; nor has one where that is written.
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
    last_for(name, lasts) -- the rules, or a block, may need it for longer
    if namespace ~= '' then
      call('ZADD', live, text(tens), key)
      last_for(live, lasts)
      settle_some(namespace, text(tens - 1), 2, now)
    end
  end
  call('HSET', name, 'u', used_now(u, now, cost))
end
