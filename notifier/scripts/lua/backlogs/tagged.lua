--! on_demand tagged_key note_tagged
--! needs job_key last_for text
-- The notifications of a user that have tags, so that a cancel by tag finds them wherever they are. A delivered one is
-- deleted here at once (see settle.lua), another one after its job has gone, when the next one comes.
--   @tagged:{user}  zset job id -> µs from which it may go. push_tagged in the job's hash: it is in this set.
local TAGGED_LASTS, MAX_GONE = 2592000000, 2 -- ms after the last of them may go; entries checked at once

local function tagged_key(user) return '@tagged:{' .. user .. '}' end

local function note_tagged(user, id, at, now)
  local key = tagged_key(user)
  for _, old in ipairs(redis.call('ZRANGE', key, 0, MAX_GONE - 1)) do
    if redis.call('EXISTS', job_key(old)) == 0 then redis.call('ZREM', key, old) end
  end
  redis.call('ZADD', key, text(at), id)
  local lasts = math.ceil((at - now) / 1000) + TAGGED_LASTS
  last_for(key, text(lasts))
end
