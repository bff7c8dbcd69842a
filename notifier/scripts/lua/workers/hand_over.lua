-- hand_over: gives up the lead, if it is the caller's, and wakes one idle worker of the same lanes, to lead or to help.
-- KEYS 3 @leader:<lanes>  4 @handover:<lanes>   list, one call; idle workers wait on it
-- ARGV 1 the caller's name  2 <lanes>  3 the call's name, by which a worker knows one that it has passed on
-- returns 1
if redis.call('GET', KEYS[3]) == ARGV[1] then
  redis.call('DEL', KEYS[3])
  redis.call('HDEL', '@leaders', ARGV[2])
end
redis.call('DEL', KEYS[4])
redis.call('RPUSH', KEYS[4], ARGV[3])
return 1
