-- hand_over: gives up the lead, if the caller has it, and wakes one idle worker of the same lanes to lead or to help.
-- KEYS 3 @leader:<lanes>  4 @handover:<lanes>   a list with one call, on which idle workers wait
-- ARGV 1 the caller's name  2 <lanes>  3 the name of the call, by which a worker recognises a call that it passed on
-- returns 1
if redis.call('GET', KEYS[3]) == ARGV[1] then
  redis.call('DEL', KEYS[3])
  redis.call('HDEL', '@leaders', ARGV[2])
end
redis.call('DEL', KEYS[4])
redis.call('RPUSH', KEYS[4], ARGV[3])
redis.call('EXPIRE', KEYS[4], '60') -- the last worker may have ended: nobody hears it then
return 1
