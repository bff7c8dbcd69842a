--! exports users_rules muted_until
-- Which rules a user follows: those of everyone, others of the user's own, or what comes of the user's choice. What a
-- choice says the scripts do not read: a worker writes down what comes of it, once for all who chose the same.
--   @own_rules:<version>  hash ':<user>' -> the number of the user's own rules; and the number -> these rules, JSON
--     {policy: see rules.lua, devices: {platform: of this policy, see limits.lua}}
--   @preferences  hash user -> JSON, see notifier/rules/preferences.py. Where it is there, the rules have `prefers`.
--   @chosen:<version>  hash '<number of own rules, or none>\n<what stands in @preferences>' -> JSON {policy, devices:
--     as of own rules, clock: where only users' rules go by it, z: the user's zone if one is chosen,
--     m: {{until µs, whether to drop, {category, …} or nil for all}, …}}
-- A worker writes @own_rules that takes up these rules, or that *pull* has told that it `is_missing`. What was written
-- for a version lasts a day after the last call that asked for it.
-- chosen: user -> what comes of the choice. unknown: user -> the choice of which nobody has written that down yet.
local users_rules = {chosen = {}, unknown = {}, is_missing = false}
local LASTS = '86400' -- s
local rules, own_key, chosen_key -- of *begin*; no key where nobody has rules of their own, or chose anything
local numbers, texts = {}, {} -- user -> the number of own rules, and the choice; false for none
local indexes, found = {}, {} -- number -> index in rules.users; field of @chosen -> what it says, false for nothing

function users_rules.begin(of_call)
  rules = of_call
  own_key = rules.own and '@own_rules:' .. rules.own
  chosen_key = rules.prefers and '@chosen:' .. rules.chosen
  users_rules.is_missing = own_key and redis.call('EXPIRE', own_key, LASTS) == 0
  if chosen_key then redis.call('EXPIRE', chosen_key, LASTS) end
end

-- read: asks for these users at once.
function users_rules.read(users)
  if #users == 0 then return end
  if own_key and not users_rules.is_missing then
    local fields = {}
    for i, user in ipairs(users) do fields[i] = ':' .. user end
    for i, number in ipairs(redis.call('HMGET', own_key, unpack(fields))) do numbers[users[i]] = number end
  end
  if not chosen_key then return end
  for i, text in ipairs(redis.call('HMGET', '@preferences', unpack(users))) do texts[users[i]] = text end
end

-- of_user: what `known` has of a user, or a field of a hash.
local function of_user(known, user, key, field)
  if known[user] == nil then known[user] = redis.call('HGET', key, field) end
  return known[user]
end

-- add: a policy comes behind those in rules.users, and what it is for a device in rules.devices. Returns its index.
local function add(own)
  local users, index = rules.users, #rules.users
  own.policy.counted = users[1].counted
  users[index + 1] = own.policy
  for platform, of_users in pairs(rules.devices or {}) do of_users[index + 1] = own.devices[platform] end
  return index
end

-- what_comes_of: a choice of somebody with own rules of this number, or none.
local function what_comes_of(text, number)
  local field = (number or '') .. '\n' .. text
  if found[field] == nil then
    local said = redis.call('HGET', chosen_key, field)
    found[field] = said and cjson.decode(said)
    if said then
      found[field].index = add(found[field])
      rules.clock = rules.clock or found[field].clock
    end
  end
  return found[field]
end

-- index_of: of a user's policy in rules.users, and in each of rules.devices; or nil where a worker has yet to write
-- down who has rules of their own, or what comes of the user's choice.
function users_rules.index_of(user)
  if not (own_key or chosen_key) then return 0 end
  if users_rules.is_missing then return nil end
  local number = own_key and of_user(numbers, user, own_key, ':' .. user)
  local text = chosen_key and of_user(texts, user, '@preferences', user)
  if text then
    local chosen = users_rules.chosen[user] or what_comes_of(text, number)
    if chosen then users_rules.chosen[user] = chosen else users_rules.unknown[user] = text end
    return chosen and chosen.index or nil
  end
  if not number then return 0 end
  indexes[number] = indexes[number] or add(cjson.decode(redis.call('HGET', own_key, number)))
  return indexes[number]
end

-- muted_until: until which µs nothing of a category is sent, and whether it is dropped; or nil. chosen: of *chosen*.
local function muted_until(chosen, category, now)
  local till, drops = nil, false
  for _, mute in ipairs(chosen.m or {}) do
    local is_meant = not mute[3]
    for _, name in ipairs(mute[3] or {}) do is_meant = is_meant or name == category end
    if is_meant and mute[1] > now then till, drops = math.max(till or 0, mute[1]), drops or mute[2] end
  end
  return till, drops
end
