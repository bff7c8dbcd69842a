-- departed: removes jobs that have arrived on another shard.
-- ARGV 1 user  2.. job ids
-- returns those that were cancelled here meanwhile: they are to be cancelled there
--! include keys routes
local cancelled = {}
for i = 2, #ARGV do
  local id, key = ARGV[i], job_key(ARGV[i])
  local job = redis.call('HMGET', key, 'origin', 'meta', 'status')
  if job[3] == 'canceled' then cancelled[#cancelled + 1] = id
  elseif job[1] then
    local backlog = backlog_key(ARGV[1], cjson.decode(job[2]).category or 'default')
    redis.call('ZREM', backlog, id)
    redis.call('ZREM', '@rq:scheduled:' .. job[1], id)
    redis.call('ZREM', '@later', id)
    for _, name in ipairs(redis.call('SMEMBERS', '@routes')) do
      redis.call('ZREM', parked_key(name), 'j' .. id)
      redis.call('ZREM', rests_key(backlog, name), id)
    end
    redis.call('DEL', key)
  end
end
return cancelled
