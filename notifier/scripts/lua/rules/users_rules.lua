--! exports users_rules muted_until
-- Which rules a user follows: everyone's, rules of the user's own, or rules that result from the user's preferences.
-- The scripts do not interpret preferences: a worker computes the rules, once for all users with the same preferences.
--   @own_rules:<version>  hash ':<user>' -> the number of the user's own rules; and number -> these rules, as JSON
--     {policy: see rules.lua, devices: {platform: the policy's limits of a device, see limits.lua}}
--   @preferences  hash user -> JSON, see notifier/rules/preferences.py. If the key exists, the rules have `prefers`.
--   @chosen:<version>  hash '<number of own rules, or none>\n<the user's entry of @preferences>' -> JSON {policy,
--     devices: as of own rules, clock: if only users' rules go by the local time, z: the user's zone if one is chosen,
--     m: {{until µs, whether to drop, {category, …} or nil for all}, …}}
-- The worker that starts to follow a version writes its @own_rules; so does one that *pull* tells that it `is_missing`.
-- Both keys last for a day after the last call that used them.
-- chosen: user -> the entry of @chosen. unknown: user -> preferences without an entry.
local users_rules = {chosen = {}, unknown = {}, is_missing = false}
local LASTS = '86400' -- s
local rules, own_key, chosen_key -- of *begin*; a key is nil if no user has own rules, or preferences
local numbers, texts = {}, {} -- user -> the number of own rules, and the preferences; false for none
local indexes, found = {}, {} -- number -> index in rules.users; field of @chosen -> its value, or false

function users_rules.begin(of_call)
  rules = of_call
  own_key = rules.own and '@own_rules:' .. rules.own
  chosen_key = rules.prefers and '@chosen:' .. rules.chosen
  users_rules.is_missing = own_key and redis.call('EXPIRE', own_key, LASTS) == 0
  if chosen_key then redis.call('EXPIRE', chosen_key, LASTS) end
end

-- of_user: the user's value in `known`, else read from a field of a hash.
local function of_user(known, user, key, field)
  if known[user] == nil then known[user] = redis.call('HGET', key, field) end
  return known[user]
end

-- add: appends a policy to rules.users, and its limits of devices to rules.devices. Returns its index.
local function add(own)
  local users, index = rules.users, #rules.users
  own.policy.counted = users[1].counted
  users[index + 1] = own.policy
  for platform, of_users in pairs(rules.devices or {}) do of_users[index + 1] = own.devices[platform] end
  return index
end

-- what_comes_of: the entry of @chosen for preferences, of a user with own rules of this number or none; or false.
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

-- index_of: the index of a user's policy in rules.users and in each of rules.devices. Returns nil while a worker has
-- yet to write @own_rules, or the user's entry of @chosen.
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

-- muted_until: the µs until which the user has muted a category, and whether its messages are dropped; or nil.
-- chosen: of users_rules.chosen.
local function muted_until(chosen, category, now)
  local till, drops = nil, false
  for _, mute in ipairs(chosen.m or {}) do
    local is_meant = not mute[3]
    for _, name in ipairs(mute[3] or {}) do is_meant = is_meant or name == category end
    if is_meant and mute[1] > now then till, drops = math.max(till or 0, mute[1]), drops or mute[2] end
  end
  return till, drops
end
