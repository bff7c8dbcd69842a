--! on_demand SENDS drop_sends hide in_flight remember
--! needs claim_key last_for text
-- The sends of those who were forgotten: as long as the limits need them they stand under a hash of the user, and get
-- their own names back before anything more is sent to the user, or acquired.
--   @forgotten                string: what the hashes are made with; there while anybody has such sends
--   @forgotten:<hash>         set of the names that stand there: sent, counts or burst, and :<category>
--   @forgotten:<hash>:<name>  a key of the user's, as it was
local SENDS = {sent = '@sent:', counts = '@counts:', burst = '@burst:'}
local salt -- nil before it was asked for

local function hash_of(user)
  if salt == nil then salt = redis.call('GET', '@forgotten') end
  return salt and '@forgotten:' .. redis.sha1hex(salt .. user)
end

-- in_flight: whether a worker has something of a user in flight, of these categories.
local function in_flight(user, categories)
  local claims = {}
  for i, category in ipairs(categories) do claims[i] = claim_key(user, category) end
  return #claims > 0 and redis.call('EXISTS', unpack(claims)) > 0
end

-- drop_sends: takes sends out of a set, but of what is in flight those that are dated ahead: it reaches the user later.
-- Where nothing is, they are dated so because the clock was set back. Returns how many have gone.
local function drop_sends(sent, some_in_flight, now)
  return redis.call('ZREMRANGEBYSCORE', sent, '-inf', some_in_flight and text(now) or '+inf')
end

-- hide: puts a key of a user's sends under the hash. kind, of: 'sent' and ':chat', or ''. with: what to make hashes
-- with, if nobody was forgotten. What is still in flight keeps its name: whoever settles it looks there.
local function hide(user, kind, of, with, now)
  local whose = '{' .. user .. '}' .. of
  local key, latest = SENDS[kind] .. whose, redis.call('ZREVRANGE', '@sent:' .. whose, 0, 0, 'WITHSCORES')[2]
  local left = redis.call('PTTL', key)
  if left <= 0 or latest and tonumber(latest) > now then return end
  redis.call('SET', '@forgotten', with, 'NX', 'PX', left)
  salt = nil
  local hidden = hash_of(user)
  redis.call('RENAME', key, hidden .. ':' .. kind .. of)
  redis.call('SADD', hidden, kind .. of)
  last_for(hidden, left)
  last_for('@forgotten', left)
end

-- remember: gives what was hidden of a user its own names back.
local function remember(user)
  local hidden = hash_of(user)
  local names = hidden and redis.call('SMEMBERS', hidden) or {}
  for _, name in ipairs(names) do
    local kind, of = name:match('^(%l+)(.*)$')
    local from = hidden .. ':' .. name
    if SENDS[kind] and redis.call('EXISTS', from) == 1 then
      redis.call('RENAMENX', from, SENDS[kind] .. '{' .. user .. '}' .. of)
    end
  end
  if #names > 0 then redis.call('DEL', hidden) end
end
