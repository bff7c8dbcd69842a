-- arrive: takes over jobs that another shard gave out, each once however often the call is repeated.
-- ARGV 1 the other shard  2.. for each: job id, µs of its own time or '', how many fields, field, value, …
-- returns how many were new here
--! include clock keys idle_leaders
local arrived, new, i = '@arrived:' .. ARGV[1], 0, 2
while i <= #ARGV do
  local id, at, n = ARGV[i], tonumber(ARGV[i + 1]), 2 * ARGV[i + 2]
  if redis.call('SADD', arrived, id) == 1 and redis.call('EXISTS', job_key(id)) == 0 then
    redis.call('HSET', job_key(id), unpack(ARGV, i + 3, i + 2 + n))
    local lane = redis.call('HGET', job_key(id), 'origin')
    if at then
      redis.call('ZADD', '@rq:scheduled:' .. lane, seconds(at), id)
      redis.call('ZADD', '@later', text(at), id)
      note_due(at)
    else
      redis.call('RPUSH', '@rq:queue:' .. lane, id)
    end
    redis.call('SADD', '@rq:queues', '@rq:queue:' .. lane)
    new = new + 1
  end
  i = i + 3 + n
end
return new
