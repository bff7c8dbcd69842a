-- hand_over: gives up the lead, if it is the caller's, and wakes one idle worker of the same lanes, to lead or to help.
-- KEYS 1 @leader:<lanes>  2 @handover:<lanes>   list, one token; idle workers wait on it
-- ARGV 1 the caller's name  2 <lanes>
-- returns 1
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('HDEL', '@leaders', ARGV[2])
end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[2], '1')
return 1
