-- sweep: ends what RQ's own cancel has left: RQ says so in the job's hash and in its registry, and to nobody else.
-- ARGV 1 clock  2 keep_failed s  3 keep_delivered µs  4.. lanes
-- returns how many it ended
-- In rq:canceled:<lane> the jobs that we ended stand at the s until which they are kept; RQ puts those that it
-- cancels at the s of its caller's clock, which is before. What is in flight is left to *settle*.
--! include clock keys alarm newcomer end cancel full
local MOST = 100
local now, keep, keep_delivered = now_us(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local whole, ended = math.floor(now / 1000000), 0

local function look_at(canceled, id)
  local key = job_key(id)
  local job = redis.pcall('HMGET', key, 'status', 'push_outcome', 'push_permit', 'push_rq_job', 'meta', 'origin')
  if job.err or job[1] ~= 'canceled' then
    redis.call('ZREM', canceled, id) -- it has gone, or was enqueued again
  elseif job[2] then
    redis.call('ZADD', canceled, whole + math.max(1, redis.call('TTL', key)), id)
  elseif job[4] or not job[6] or not (job[5] or ''):find('"user"', 1, true) then
    redis.call('ZADD', canceled, whole + keep, id) -- a job of another function: RQ's affair
  elseif not job[3] then
    end_cancelled(now, id, redis.call('HMGET', key, unpack(CANCEL_READS)), keep, keep_delivered)
    ended = ended + 1
  end
end

for i = 4, #ARGV do
  local canceled = 'rq:canceled:' .. ARGV[i]
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', canceled, '-inf', whole, 'LIMIT', 0, MOST)) do
    look_at(canceled, id)
  end
end
return ended
