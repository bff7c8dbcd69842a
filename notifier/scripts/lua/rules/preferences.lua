--! exports preferences muted_until
-- What users chose for themselves. The scripts do not read what it says: the caller tells what it makes of it, and is
-- told where that is no longer what stands there.
--   @preferences  hash user -> JSON, see notifier/rules/preferences.py. Where it is there, the rules have `prefers`.
-- In an argument: {user: {t: the text that the caller knows, z: the user's zone if one is chosen,
--   m: {{until µs, whether to drop, {category, …} or nil for all}, …}}}; or ''.
-- stale: user -> the text that stands there, or ''.
local preferences = {known = {}, stale = {}}

function preferences.read(rules, users, known)
  preferences.known = known ~= '' and cjson.decode(known) or {}
  if #users == 0 or not rules.prefers and not next(preferences.known) then return end
  local texts = redis.call('HMGET', '@preferences', unpack(users))
  for i, user in ipairs(users) do
    local known_text = preferences.known[user] and preferences.known[user].t or ''
    if (texts[i] or '') ~= known_text then preferences.stale[user] = texts[i] or '' end
  end
end

local function is_among(category, categories)
  for _, name in ipairs(categories) do
    if name == category then return true end
  end
  return false
end

-- muted_until: until which µs nothing of a category is sent, and whether it is dropped; or nil. chosen: of *known*.
local function muted_until(chosen, category, now)
  local till, drops = nil, false
  for _, mute in ipairs(chosen.m or {}) do
    if mute[1] > now and (not mute[3] or is_among(category, mute[3])) then
      till, drops = math.max(till or 0, mute[1]), drops or mute[2]
    end
  end
  return till, drops
end
