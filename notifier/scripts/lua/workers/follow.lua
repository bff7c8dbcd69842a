-- follow: notes that a worker follows these rules from now on.
-- ARGV 1 clock  2 their version
-- returns 1 if they are others than those that were taken up last, else 0
--! first_write
--! needs now_us text
local key, version = '@leaders', ARGV[2]
if redis.call('HGET', key, '#rules') == version then return 0 end
redis.call('HSET', key, '#rules', version, '#since', text(now_us(ARGV[1])))
return 1
