-- acquire: the right to send to a user now, by all rules or by none.
-- KEYS 1 the user's sends  2 the user's sends of the category (or the first again, with an empty policy)
-- ARGV 1 clock  2 permit  3 cost  4 '1' to take it, '0' to look only  5 policy of the user, JSON
--      6 policy of the category, JSON  7 '1' if the category bypasses
-- returns {now, time left µs (0: admitted), '' | 'user' | 'category', rule (see _rules.lua)}
-- A send of cost n stands as n members: the permit, permit#2, …
--! include _clock _rules
local now, cost = now_us(ARGV[1]), tonumber(ARGV[3])
local policies = {unfold(cjson.decode(ARGV[5])), unfold(cjson.decode(ARGV[6]))}
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
      local left = redis.call('PTTL', KEYS[i])
      record(KEYS[i], policy, ARGV[2], now, text(now), now, true)
      -- A permit in flight matters for longer than a send of now does.
      if left > redis.call('PTTL', KEYS[i]) then redis.call('PEXPIRE', KEYS[i], left) end
      for n = 2, cost do redis.call('ZADD', KEYS[i], now, ARGV[2] .. '#' .. n) end
    end
  end
end
return {now, 0, '', -1}
