--! on_demand SENDS drop_sends hide in_flight remember
--! needs claim_key last_for text
-- The sends of forgotten users. While limits need them, their keys are named by a salted hash of the user. They get
-- their own names back before anything more is sent to the user, or acquired.
--   @forgotten                string: the salt; exists while any user has such keys
--   @forgotten:<hash>         set of the names of these keys: sent, counts or burst, and :<category>
--   @forgotten:<hash>:<name>  a key of the user's, unchanged
local SENDS = {sent = '@sent:', counts = '@counts:', burst = '@burst:'}
local salt -- nil until it is read

local function hash_of(user)
  if salt == nil then salt = redis.call('GET', '@forgotten') end
  return salt and '@forgotten:' .. redis.sha1hex(salt .. user)
end

-- in_flight: whether a worker has jobs of a user in flight, in these categories.
local function in_flight(user, categories)
  local claims = {}
  for i, category in ipairs(categories) do claims[i] = claim_key(user, category) end
  return #claims > 0 and redis.call('EXISTS', unpack(claims)) > 0
end

-- drop_sends: deletes the sends of a set. If jobs are in flight, sends dated ahead stay, because they reach the user
-- later. If none are, only a clock that was set back has dated sends ahead. Returns how many were deleted.
local function drop_sends(sent, some_in_flight, now)
  return redis.call('ZREMRANGEBYSCORE', sent, '-inf', some_in_flight and text(now) or '+inf')
end

-- hide: renames a key of a user's sends to its name under the hash. kind, of: 'sent' and ':chat' or ''. with: the salt
-- if there is none yet. A key with sends in flight keeps its name, as *settle* looks there.
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

-- remember: gives the hidden keys of a user their own names back.
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
