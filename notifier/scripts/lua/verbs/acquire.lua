-- acquire: the right to send to a user now, by all rules or by none.
-- KEYS 1 the user's sends  2 the user's sends of the category (or the first again, with an empty policy)
-- ARGV 1 clock  2 permit  3 cost  4 '1' to take it, '0' to look only  5 policy of the user, JSON
--      6 policy of the category, JSON  7 '1' if the category bypasses
-- returns {now, time left µs (0: admitted), '' | 'user' | 'category', rule (see rules.lua)}
--! include clock counts burst rules
local now, cost = now_us(ARGV[1]), tonumber(ARGV[3])
local counting = is_counting()
local policies = {unfold(cjson.decode(ARGV[5]), counting), unfold(cjson.decode(ARGV[6]), counting)}
local scopes, at, scope, rule = {'user', 'category'}, 0, '', -1
if ARGV[7] ~= '1' then
  for i, policy in ipairs(policies) do
    local next_at, deciding = next_for(KEYS[i], policy, cost)
    if next_at > at then at, scope, rule = next_at, scopes[i], deciding end
  end
end
if at > now then return {now, at - now, scope, rule} end
if ARGV[4] == '1' then
  for i, policy in ipairs(policies) do
    if not is_empty(policy) then
      -- A permit in flight matters for longer than a send of now does, and rules of others, such as the workers', may
      -- ask for longer than these do: then all stays as it is.
      local left = redis.call('PTTL', KEYS[i])
      local longer = left > math.ceil(policy[2] / 1000) + 1
      if longer and policy.exact_us then policy.exact_us = math.huge end
      record(KEYS[i], policy, ARGV[2], now, text(now), now, not longer, cost)
      if longer then redis.call('PEXPIRE', KEYS[i], left) end
    end
  end
end
return {now, 0, '', -1}
