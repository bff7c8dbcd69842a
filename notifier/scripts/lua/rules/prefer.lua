-- prefer: replaces a user's preferences, if they still are what the caller has read, and makes the user due at once.
-- ARGV a PREFER, see records.py
-- returns {1}, or {0, the preferences that Redis has} if nothing was done. Idempotent.
--! needs look_again now_us
local KEPT = 10000
local now, user, who = now_us(ARGV[PREFER.clock]), ARGV[PREFER.user], ARGV[PREFER.who]
local before, after = ARGV[PREFER.before], ARGV[PREFER.after]
local stands = redis.call('HGET', '@preferences', user) or ''
if stands == after then return {1} end
if stands ~= before then return {0, stands} end
if after == '' then redis.call('HDEL', '@preferences', user) else redis.call('HSET', '@preferences', user, after) end
redis.call('XADD', '@actions:users', 'MAXLEN', '~', KEPT, '*', 'who', who, 'action', 'preferences', 'of', user,
  'answer', after)
look_again(now, user)
return {1}
