-- lead: makes the caller the idle leader of those that serve its lanes, or renews that; see idle_leaders.lua.
-- KEYS 3 @leader:<lanes>   string, the name of the leader; what does not lapse within ARGV 2 was never set here
-- ARGV 1 the caller's name  2 ms until it is taken for gone
-- returns 0 if the caller is the leader now, else ms until the lead of another lapses
--! first_write
local left = redis.call('PTTL', KEYS[3])
if left > 0 and left <= tonumber(ARGV[2]) and redis.call('GET', KEYS[3]) ~= ARGV[1] then return left end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return 0
