-- acquire: asks for the right to send to a user now. Quiet hours are the only rules that it does not check.
-- KEYS 3 the user's sends  4 the user's sends of the category
-- ARGV an ACQUIRE, see records.py
-- returns {now, time left µs (0: admitted), '' | 'user' | 'category', rule (see *rule_mark*; of a calendar window its
--         place, from 0)}
--! needs is_counting is_empty next_for now_us nth record remember rule_mark text
local now, cost = now_us(ARGV[ACQUIRE.clock]), tonumber(ARGV[ACQUIRE.cost])
local ROUNDED = 5000 -- µs by which a set may live longer than it has to
local rare = redis.call('EXISTS', '@counting', '@forgotten') > 0
if rare then remember(ARGV[ACQUIRE.user]) end
local counting = rare and is_counting()
local policies = {cjson.decode(ARGV[ACQUIRE.rules]), cjson.decode(ARGV[ACQUIRE.of_category])}
policies[1].counted, policies[2].counted = counting, counting
local days = cjson.decode(ARGV[ACQUIRE.days])
local at, scope, rule = 0, '', ''

-- hold_by_calendar: a full calendar window opens when its day ends, or at the next µs if that day is over by now.
local function hold_by_calendar(sent, policy, whose)
  for n, window in ipairs(policy.calendar or {}) do
    local begins, ends = unpack(days[window[2]])
    local latest = nth(sent, policy, math.max(1, window[1] - cost + 1), redis.call('ZCARD', sent))
    local opens = latest and tonumber(latest) >= begins and math.max(ends, now + 1) or 0
    if opens > at then at, scope, rule = opens, whose, n - 1 end
  end
end

if ARGV[ACQUIRE.bypass] ~= '1' then
  for i, whose in ipairs({'user', 'category'}) do
    local sent, policy = KEYS[i + 2], policies[i]
    local opens, deciding = next_for(sent, policy, cost, now)
    if opens > at then at, scope, rule = opens, whose, rule_mark(policy, deciding) end
    hold_by_calendar(sent, policy, whose)
  end
end
if at > now then return {now, at - now, scope, rule} end
if ARGV[ACQUIRE.take] == '1' then
  for i, policy in ipairs(policies) do
    if not is_empty(policy) then
      -- Workers may follow other rules than the caller, with longer windows. How long the set would live after its
      -- latest send shows how long; keep this send and those before it as long.
      local sent = KEYS[i + 2]
      local left, latest = redis.call('PTTL', sent), redis.call('ZREVRANGE', sent, 0, 0, 'WITHSCORES')[2]
      local longest = latest and now + left * 1000 - latest or 0
      -- *record* rounds up.
      if left > 0 and longest > policy.horizon + ROUNDED then policy.horizon = longest - 1500 end
      record(sent, policy, ARGV[ACQUIRE.permit], now, text(now), now, true, cost)
    end
  end
end
return {now, 0, '', ''}
