-- leave: closes this shard to users who move to another: nothing new is taken on for them, and nothing more is sent
-- here, save what is in flight. Doing it twice changes nothing.
-- ARGV 1 lanes, JSON  2.. for each: user, the shard it moves to
-- returns the last job in the queue of each lane, or '': once it is put in its backlog, so is all that these users had
-- queued
--! include clock keys leaving forgotten
local lanes, tails = cjson.decode(ARGV[1]), {}
for i = 2, #ARGV, 2 do
  local user, backlogs = ARGV[i], redis.call('HGETALL', backlogs_key(ARGV[i]))
  remember(user)
  if not is_leaving(user) then redis.call('HSET', '@moves', user, '>' .. ARGV[i + 1]) end
  for n = 1, #backlogs, 2 do
    if backlogs[n]:sub(1, 1) ~= '#' then redis.call('HSET', away_key(user), backlogs[n], backlogs[n + 1]) end
  end
  redis.call('DEL', backlogs_key(user))
  for _, lane in ipairs(lanes) do
    redis.call('ZREM', '@gates:' .. lane, user)
    for _, name in ipairs(redis.call('SMEMBERS', '@routes')) do
      redis.call('ZREM', '@parked:' .. name, 'u' .. lane .. ' ' .. user)
    end
  end
end
for i, lane in ipairs(lanes) do tails[i] = redis.call('LINDEX', '@rq:queue:' .. lane, -1) or '' end
return tails
