--! on_demand tagged_key note_tagged
--! needs job_key last_for text
-- What a user has of notifications with tags, so that a cancel by tag finds them wherever they are. What is delivered
-- leaves it at once (see settle.lua); what ended otherwise, once its job is kept no more and another comes.
--   @tagged:{user}  zset job id -> µs, since when it may go. push_tagged in the job's hash: it stands here.
local TAGGED_LASTS, MAX_GONE = 2592000000, 2 -- ms behind the last that may go

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
