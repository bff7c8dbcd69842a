-- lead: makes the caller the idle leader of its lanes, or renews its lead; see idle_leaders.lua. Or, in the same way,
-- gives the caller the turn to walk over all wake-ups.
-- KEYS 3 @leader:<lanes> or @reload:turn   string, the name of the leader. A longer life than ARGV 2 is from before
--   Redis's clock was set back, and is replaced
-- ARGV 1 the caller's name  2 ms until the lead lapses
-- returns 0 if the caller leads now, else ms until the other worker's lead lapses
--! first_write
local left = redis.call('PTTL', KEYS[3])
if left > 0 and left <= tonumber(ARGV[2]) and redis.call('GET', KEYS[3]) ~= ARGV[1] then return left end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return 0
