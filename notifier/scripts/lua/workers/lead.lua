-- lead: makes the caller the idle leader of those that serve its lanes, or renews that; see idle_leaders.lua.
-- KEYS 3 @leader:<lanes>   string, the name of the leader
-- ARGV 1 the caller's name  2 ms until it is taken for gone
-- returns 0 if the caller is the leader now, else ms until the lead of another lapses
--! first_write
if redis.call('SET', KEYS[3], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
if redis.call('GET', KEYS[3]) ~= ARGV[1] then return math.max(1, redis.call('PTTL', KEYS[3])) end
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 0
