-- acquire: the right to send to a user now, by all rules or by none.
-- KEYS 3 the user's sends  4 the user's sends of the category (or the first again, with an empty policy)
-- ARGV an ACQUIRE, see records.py. Its `chosen`: {t: the text or '', muted: until which µs,
--      quiet: {{from, until}, …} in order, calendar: {{limit, from, until}, …}, of: {from, until}: when this is right,
--      where it goes by the clock}
-- returns {now, time left µs (0: admitted), '' | 'user' | 'category' | 'mute' | 'quiet' | 'calendar', rule (see
--         *rule_mark*; of 'calendar' its place)}; or {now, -1, the text that stands there}: the caller is to ask again
--! needs is_counting is_empty next_for note_horizon now_us nth record remember rule_mark text
local now, cost, user = now_us(ARGV[ACQUIRE.clock]), tonumber(ARGV[ACQUIRE.cost]), ARGV[ACQUIRE.user]
local ROUNDED = 5000 -- µs by which a set may live longer than it has to
local rare = redis.call('EXISTS', '@counting', '@preferences', '@forgotten') > 0
local put_back = rare and remember(user)
local function answer(...)
  if put_back and ARGV[ACQUIRE.take] ~= '1' then put_back() end
  return {now, ...}
end

local counting = rare and is_counting()
local policies = {cjson.decode(ARGV[ACQUIRE.rules]), cjson.decode(ARGV[ACQUIRE.of_category])}
policies[1].counted, policies[2].counted = counting, counting
local scopes, at, scope, rule = {'user', 'category'}, 0, '', ''
local chosen = ARGV[ACQUIRE.chosen] ~= '' and cjson.decode(ARGV[ACQUIRE.chosen]) or {}

-- stale: the user's text, where the caller is to ask again; or nil.
local function stale()
  if not rare and chosen.t == '' then return nil end
  local stands = redis.call('HGET', '@preferences', user) or ''
  if stands ~= chosen.t or chosen.of and (now < chosen.of[1] or now >= chosen.of[2]) then return stands end
end

local function later(opens, of, number)
  if opens > math.max(at, now) then at, scope, rule = opens, of, number end
end

-- hold_by_choice: what the user's own calendar windows, mutes and hours add to the rules.
local function hold_by_choice()
  for i, window in ipairs(chosen.calendar or {}) do
    local latest = nth(KEYS[3], policies[1], math.max(1, window[1] - cost + 1), redis.call('ZCARD', KEYS[3]))
    if latest and tonumber(latest) >= window[2] then later(window[3], 'calendar', i - 1) end
  end
  later(chosen.muted or 0, 'mute', '')
  for _, span in ipairs(chosen.quiet or {}) do
    if math.max(at, now) >= span[1] then later(span[2], 'quiet', '') end
  end
end

local text_now = chosen.t and stale()
if text_now then return answer(-1, text_now) end
if ARGV[ACQUIRE.take] == '1' then
  for i, policy in ipairs(policies) do note_horizon(KEYS[i + 2], policy.horizon or 0, now) end
end
if ARGV[ACQUIRE.bypass] ~= '1' then
  for i, policy in ipairs(policies) do
    local next_at, deciding = next_for(KEYS[i + 2], policy, cost, now)
    if next_at > at then at, scope, rule = next_at, scopes[i], rule_mark(policy, deciding) end
  end
  hold_by_choice()
end
if at > now then return answer(at - now, scope, rule) end
if ARGV[ACQUIRE.take] == '1' then
  for i, policy in ipairs(policies) do
    if not is_empty(policy) then
      -- Rules of others, such as the workers', may ask for longer than these do: as long as the set lives after its
      -- latest send. So long this one is kept too, and those before it.
      local sent = KEYS[i + 2]
      local left, latest = redis.call('PTTL', sent), redis.call('ZREVRANGE', sent, 0, 0, 'WITHSCORES')[2]
      local longest = latest and now + left * 1000 - latest or 0
      -- *record* rounds up.
      if left > 0 and longest > policy.horizon + ROUNDED then policy.horizon = longest - 1500 end
      record(sent, policy, ARGV[ACQUIRE.permit], now, text(now), now, true, cost)
    end
  end
end
return answer(0, '', '')
