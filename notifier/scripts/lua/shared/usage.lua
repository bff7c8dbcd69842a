-- The limiter's keys, and what is known of their use where a namespace asks for it.
--   @keys:<namespace>:{key}              zset send -> µs, as a user's sends (see rules.lua), and a mark (see
--   kept.lua). A send is 8 bytes, the µs, and the end of its permit's id
--   @use:<namespace>:{key}               hash: total, held, first and last (µs), and a minute -> how many then
--   @used:<namespace>                    hash minute -> how many of all keys
--   @ranks:<namespace>:total|held|last   zset key -> how many, or µs of the last use
--   @ranks:<namespace>:<tens of minutes> zset key -> how many in these ten minutes
--   @namespaces                          zset namespace -> µs of a use, by the minute
-- All of it goes `keep` after a key's last use; a few that have gone idle leave the ranks with each use of another.
local MINUTE, MAX_IDLE, RATED = 60000000, 4, 8
local NAMESPACES, UNUSED = '@namespaces', 34560000000000 -- 400 days

local function keys_key(namespace, key) return '@keys:' .. namespace .. ':{' .. key .. '}' end
local function use_key(namespace, key) return '@use:' .. namespace .. ':{' .. key .. '}' end
local function used_key(namespace) return '@used:' .. namespace end
local function rank_key(namespace, by) return '@ranks:' .. namespace .. ':' .. by end

-- forget_minutes: drops what a hash of minutes holds from before µs `before`.
local function forget_minutes(hash, before)
  local old = {}
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    local minute = tonumber(field)
    if minute and minute * MINUTE < before then old[#old + 1] = field end
  end
  for i = 1, #old, 500 do redis.call('HDEL', hash, unpack(old, i, math.min(i + 499, #old))) end
end

local function forget_idle(namespace, before)
  local idle = redis.call('ZRANGEBYSCORE', rank_key(namespace, 'last'), '-inf', text(before), 'LIMIT', 0, MAX_IDLE)
  if #idle == 0 then return end
  for _, by in ipairs({'last', 'total', 'held'}) do redis.call('ZREM', rank_key(namespace, by), unpack(idle)) end
end

-- note_usage: a key was asked for `cost`, and got it, or was held. What is renewed once a minute is kept a minute
-- longer.
local function note_usage(namespace, key, cost, admitted, now, keep)
  local use, minute, stamp = use_key(namespace, key), text(math.floor(now / MINUTE)), text(now)
  local lasts = text(math.ceil((keep + MINUTE) / 1000))
  redis.call('ZADD', rank_key(namespace, 'last'), stamp, key)
  if not admitted then
    redis.call('HINCRBY', use, 'held', 1)
    redis.call('ZINCRBY', rank_key(namespace, 'held'), 1, key)
    redis.call('PEXPIRE', use, lasts)
    for _, by in ipairs({'last', 'held'}) do redis.call('PEXPIRE', rank_key(namespace, by), lasts) end
    return forget_idle(namespace, now - keep)
  end
  local tens = rank_key(namespace, text(math.floor(now / (10 * MINUTE))))
  if redis.call('HINCRBY', use, 'total', cost) == cost then redis.call('HSET', use, 'first', stamp) end
  redis.call('HSET', use, 'last', stamp)
  redis.call('ZINCRBY', rank_key(namespace, 'total'), cost, key)
  redis.call('ZINCRBY', tens, cost, key)
  if redis.call('HINCRBY', use, minute, cost) == cost then
    forget_minutes(use, now - keep)
    redis.call('PEXPIRE', use, lasts)
  end
  if redis.call('HINCRBY', used_key(namespace), minute, cost) == cost then
    forget_minutes(used_key(namespace), now - keep)
    redis.call('PEXPIRE', used_key(namespace), lasts)
    for _, by in ipairs({'last', 'total', 'held'}) do redis.call('PEXPIRE', rank_key(namespace, by), lasts) end
    redis.call('PEXPIRE', tens, text(RATED * 10 * MINUTE / 1000))
    redis.call('ZADD', NAMESPACES, stamp, namespace)
    redis.call('ZREMRANGEBYSCORE', NAMESPACES, '-inf', text(now - UNUSED))
  end
  forget_idle(namespace, now - keep)
end
