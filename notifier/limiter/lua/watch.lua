-- watch: takes or renews the watch, which one idle worker keeps for all.
-- KEYS 1 notifier:watch   string, the name of the worker on watch
-- ARGV 1 the caller's name  2 ms until it is taken for gone
-- returns 1 if the caller is on watch now, else 0
--! include _full
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
