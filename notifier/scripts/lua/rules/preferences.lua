--! exports preferences muted_until
--! needs own_rules
-- What users chose for themselves. The scripts do not read what it says: a worker writes down what comes of it under
-- the rules, once for all who chose the same.
--   @preferences  hash user -> JSON, see notifier/rules/preferences.py. Where it is there, the rules have `prefers`.
--   @chosen:<version>  hash '<number in own_rules.lua, or none>\n<what stands in @preferences>' -> JSON {policy,
--     devices: as of own rules, clock: where only users' rules go by it, z: the user's zone if one is chosen,
--     m: {{until µs, whether to drop, {category, …} or nil for all}, …}}
-- of: user -> what comes of the choice. unknown: user -> the choice of which nobody has written that down yet.
local preferences = {of = {}, unknown = {}}
local rules, key, alike -- of *begin*; no key where nobody chose anything; alike: all follow the same rules
local texts, found = {}, {} -- user -> the choice, false for none; field -> what comes of it, false if that is unknown

function preferences.begin(of_call)
  rules, key = of_call, of_call.prefers and '@chosen:' .. of_call.chosen
  alike = not (key or rules.own)
  own_rules.begin(of_call)
  if key then redis.call('EXPIRE', key, own_rules.LASTS) end
end

-- read: asks for these users at once.
function preferences.read(users)
  if alike or #users == 0 then return end
  own_rules.read(users)
  if not key then return end
  for i, text in ipairs(redis.call('HMGET', '@preferences', unpack(users))) do texts[users[i]] = text end
end

local function text_of(user)
  if texts[user] == nil then texts[user] = redis.call('HGET', '@preferences', user) end
  return texts[user]
end

local function what_comes_of(text, user)
  local field = own_rules.number_of(user) .. '\n' .. text
  if found[field] ~= nil then return found[field] end
  local said = redis.call('HGET', key, field)
  local chosen = said and cjson.decode(said)
  if chosen then
    chosen.index = own_rules.add(chosen)
    rules.clock = rules.clock or chosen.clock
  end
  found[field] = chosen
  return chosen
end

-- index_of: of a user's policy in rules.users, and in each of rules.devices; or nil where a worker has yet to write
-- down who has rules of their own, or what comes of the user's choice.
function preferences.index_of(user)
  if alike then return 0 end
  if own_rules.is_missing then return nil end
  local text, chosen = key and text_of(user), preferences.of[user]
  if not text then return own_rules.index_of(user) end
  chosen = chosen or what_comes_of(text, user)
  if chosen then preferences.of[user] = chosen else preferences.unknown[user] = text end
  return chosen and chosen.index or nil
end

local function is_among(category, categories)
  for _, name in ipairs(categories) do
    if name == category then return true end
  end
  return false
end

-- muted_until: until which µs nothing of a category is sent, and whether it is dropped; or nil. chosen: of *of*.
local function muted_until(chosen, category, now)
  local till, drops = nil, false
  for _, mute in ipairs(chosen.m or {}) do
    if mute[1] > now and (not mute[3] or is_among(category, mute[3])) then
      till, drops = math.max(till or 0, mute[1]), drops or mute[2]
    end
  end
  return till, drops
end
