-- relieve: gives the watch up, if it is the caller's, and wakes one idle worker to take it or to help.
-- KEYS 1 notifier:watch  2 notifier:relief   list, one token; idle workers wait on it
-- ARGV 1 the caller's name
-- returns 1
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1], 'notifier:alarm') end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], '1')
return 1
