--! exports own_rules
-- Own rules: which users have other rules than everyone, and what these are.
--   @own_rules:<version>  hash ':<user>' -> the number of the user's rules; and the number -> these rules, JSON
--     {policy: see rules.lua, devices: {platform: of this policy, see limits.lua}}
-- A worker writes it that takes up these rules, or that *pull* has told that it is missing. It lasts a day after the
-- last call that asked for it.
local own_rules = {LASTS = '86400', is_missing = false} -- s
local rules, key -- of *begin*; no key where everyone follows the same
local numbers, indexes = {}, {} -- user -> the number, false for none; number -> index in rules.users

function own_rules.begin(of_call)
  rules, key = of_call, of_call.own and '@own_rules:' .. of_call.own
  own_rules.is_missing = key and redis.call('EXPIRE', key, own_rules.LASTS) == 0
end

-- read: asks for these users at once.
function own_rules.read(users)
  if not key or own_rules.is_missing then return end
  local fields = {}
  for i, user in ipairs(users) do fields[i] = ':' .. user end
  for i, number in ipairs(redis.call('HMGET', key, unpack(fields))) do numbers[users[i]] = number end
end

-- number_of: of a user's rules, or '' for those of everyone.
function own_rules.number_of(user)
  if not key then return '' end
  local found = numbers[user]
  if found == nil then
    found = redis.call('HGET', key, ':' .. user)
    numbers[user] = found
  end
  return found or ''
end

-- add: a policy comes behind those in rules.users, and what it is for a device in rules.devices. Returns its index.
function own_rules.add(own)
  local users, index = rules.users, #rules.users
  own.policy.counted = users[1].counted
  users[index + 1] = own.policy
  for platform, of_users in pairs(rules.devices or {}) do of_users[index + 1] = own.devices[platform] end
  return index
end

-- index_of: of the policy of a user who chose nothing, in rules.users and in each of rules.devices.
function own_rules.index_of(user)
  local number = own_rules.number_of(user)
  if number == '' then return 0 end
  indexes[number] = indexes[number] or own_rules.add(cjson.decode(redis.call('HGET', key, number)))
  return indexes[number]
end
