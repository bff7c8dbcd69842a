-- tidy: takes out of a piece of a queue what has ended there: it would count as waiting until a worker passes over it.
-- ARGV 1 lane  2 how many stand behind the piece  3 how many are looked at
-- returns {how many were looked at, how many were taken out}
--! first_write
--! needs job_key
local queue, behind, ended = '@rq:queue:' .. ARGV[1], tonumber(ARGV[2]), 0
local ids = redis.call('LRANGE', queue, -behind - ARGV[3], -behind - 1)
for i, id in ipairs(ids) do
  local status, outcome = unpack(redis.call('HMGET', job_key(id), 'status', 'push_outcome'), 1, 2)
  if status == 'canceled' and outcome or not status and redis.call('EXISTS', job_key(id)) == 0 then
    -- By its place, then all at once: LREM of each would go through what stands behind the piece once more.
    redis.call('LSET', queue, i - #ids - behind - 1, '')
    ended = ended + 1
  end
end
if ended > 0 then redis.call('LREM', queue, -ended, '') end
return {#ids, ended}
