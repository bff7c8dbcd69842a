-- follow: notes that a worker follows these rules from now on.
-- ARGV 1 clock  2 their version
-- returns 1 where they are new to what waits: others were taken up last, or nobody has walked since; else 0
--! first_write
--! needs now_us text
local key, version = '@leaders', ARGV[2]
local rules, walked = unpack(redis.call('HMGET', key, '#rules', '#walked'), 1, 2)
if rules == version then return walked == version and 0 or 1 end
redis.call('HSET', key, '#rules', version, '#since', text(now_us(ARGV[1])), '#walked', rules and '' or version)
return rules and 1 or 0 -- the first rules of all: nothing waits by others
