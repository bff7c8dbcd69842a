-- follow: notes which version of the rules a worker follows from now on.
-- ARGV 1 clock  2 the version  3 1 if the worker followed another version, by which it may have set wake-ups
-- returns {#since, #walked}, see idle_leaders.lua
--! first_write
--! needs now_us number text
local key, version, changed = '@leaders', ARGV[2], ARGV[3] == '1'
local rules, since, walked = unpack(redis.call('HMGET', key, '#rules', '#since', '#walked'), 1, 3)
since, walked = number(since) or 0, number(walked) or 0
if rules ~= version or changed then
  since = math.max(now_us(ARGV[1]), since + 1)
  if not (rules or changed) then walked = since end -- the first rules of all: no wake-up was set by others
  redis.call('HSET', key, '#rules', version, '#since', text(since), '#walked', text(walked))
end
return {since, walked}
