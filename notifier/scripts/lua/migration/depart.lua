-- depart: gives out jobs of a user's who has left, for *arrive*. They stay here, and can be cancelled here no more,
-- until they are removed by *departed*.
-- ARGV 1 user  2 category  3 how many at the most
-- returns {{job id, field, value, …}, …} in order; none: the backlog is empty, and forgotten
--! include clock keys leaving
local user, category, reply = ARGV[1], ARGV[2], {}
for _, id in ipairs(redis.call('ZRANGE', backlog_key(user, category), 0, ARGV[3] - 1)) do
  local key = job_key(id)
  if redis.call('EXISTS', key) == 0 or redis.call('HGET', key, 'status') == 'canceled' then
    redis.call('ZREM', backlog_key(user, category), id)
  else
    redis.call('HSET', key, 'push_permit', 'leaves')
    reply[#reply + 1] = {id, unpack(redis.call('HGETALL', key))}
  end
end
if redis.call('EXISTS', backlog_key(user, category)) == 0 then redis.call('HDEL', away_key(user), category) end
return reply
