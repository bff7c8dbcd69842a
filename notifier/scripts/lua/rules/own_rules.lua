--! exports own_rules
-- Own rules: which users have other rules than everyone, and what these are.
--   @own_rules:<version>  hash user -> the number of the user's rules; and '\n<number>' -> these rules, JSON {policy:
--     see rules.lua, devices: {platform: of this policy, see limits.lua}}
-- A worker writes it that *pull* has told that it is missing. It lasts as long as somebody pulls by these rules.
local LASTS = '3600' -- s
local own_rules = {is_missing = false}
local key, rules -- of *begin*; no key where everyone follows the same
local of_user, indexes = {}, {} -- user -> the number, false for none; number -> index in rules.users

function own_rules.begin(of_call, version)
  rules, key = of_call, version ~= '' and '@own_rules:' .. version or nil
  own_rules.is_missing = key ~= nil and redis.call('EXPIRE', key, LASTS) == 0
end

-- read: asks for these users at once.
function own_rules.read(users)
  if not key or own_rules.is_missing or #users == 0 then return end
  for i, which in ipairs(redis.call('HMGET', key, unpack(users))) do of_user[users[i]] = which end
end

-- index_of: of a user's policy in rules.users, and in each of rules.devices.
function own_rules.index_of(user)
  if not key then return 0 end
  local which = of_user[user]
  if which == nil then which = redis.call('HGET', key, user) end
  of_user[user] = which
  if not tonumber(which) then return 0 end
  local known, users = indexes[which], rules.users
  if known then return known end
  local own, index = cjson.decode(redis.call('HGET', key, '\n' .. which)), #users
  own.policy.counted = users[1].counted
  users[index + 1], indexes[which] = own.policy, index
  for platform, of_users in pairs(rules.devices or {}) do of_users[index + 1] = own.devices[platform] end
  return index
end
