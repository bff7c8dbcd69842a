--! on_demand move tell_feedback close_devices mark_of_rq
--! needs close_device end_cancelled end_failed end_unsent ends enter_backlog forget free_dedupe history look_by number
--! needs seconds targets_of text
-- The next state of a job that was not plainly delivered. look: of *settle*; job: of *read_settled*.
local YEAR = 31536000 -- as long as RQ keeps what failed
-- 'malformed: its meta cannot be read', as RQ stores the text of a failure.
local UNREADABLE = 'eJzLTcxJyy/KTU2xUsgsKVbITS1JVEhOzMvLL1FISlUoSk1MAQDd3wxv'

local function add_one(key, field) -- no HINCRBY: other programs may have written anything there
  redis.call('HSET', key, field, (number(redis.call('HGET', key, field)) or 0) + 1)
end

local function note_sent(job)
  if job.reached then redis.call('HSET', job.key, 'push_sent', '1') end
end

local function failed(look, job, keep)
  if job.word ~= 'expired' then add_one(job.key, 'push_attempts')
  elseif not job.reached then free_dedupe(job.id, job.key) end
  note_sent(job)
  end_failed(look.now, job.id, job.origin, job.word, job.detail, keep, look.worker)
end

local function dropped(look, job)
  redis.call('HDEL', job.key, 'push_permit', 'push_deadline', 'push_counted')
  end_unsent(look.now, job.id, job.origin, job.word, 'push_reason', job.detail)
end

-- note_answers: writes the providers' answers so far to the hash of a job that goes on, or was cancelled. why: what
-- holds it back from now on, see history.lua, or nil.
local function note_answers(look, job, why)
  if job.answered ~= '' then redis.call('HSET', job.key, 'push_answered', job.answered) end
  note_sent(job)
  local noted = job.noted
  if not noted then return end
  local ago, answers = job.handed:match('^(%d+) (.*)$')
  if ago then noted = history.add(noted, look.now - ago, 'f=' .. answers) end
  if why then noted = history.add(noted, look.now, why) end
  if noted ~= job.noted then redis.call('HSET', job.key, 'push_history', noted) end
end

-- wait: the job returns to its backlog after `us` µs, or at its expiry if that is earlier, so that it ends in time.
local function wait(look, job, us)
  local now = look.now
  local deadline = tonumber(redis.call('HGET', job.key, 'push_deadline') or '')
  if deadline then us = math.max(0, math.min(us, deadline - now)) end
  redis.call('HSET', job.key, 'status', 'scheduled')
  redis.call('ZADD', '@later', now + us, job.id)
  redis.call('ZADD', '@rq:scheduled:' .. job.origin, seconds(now + us), job.id)
  look.earliest = math.min(look.earliest, now + us)
end

local function queue_again(job, command)
  redis.call('HSET', job.key, 'status', 'queued')
  redis.call(command, '@rq:queue:' .. job.origin, job.id)
end

-- unreadable: for a job whose meta names no user. If *settle* knows the user, the meta was overwritten in flight, and a
-- worker reads the job's data again. Else a worker has read the data already, and the job fails: returns true then.
local function unreadable(look, job)
  if job.user ~= '' then queue_again(job, 'LPUSH') return false end
  job.word, job.detail = 'failed', UNREADABLE
  failed(look, job, ends.failed)
  return true
end

-- mark_of_rq: push_rq_job of a job that the holder of its permit hands to RQ, see job_key.lua.
local function mark_of_rq(job) return (job.user == '' and '0' or '') .. job.permit end

-- back: the job goes on: with RQ, in its queue, in `later` or in its backlog. Returns true if it ends instead.
local function back(look, job)
  local key, state, now = job.key, job.state, look.now
  redis.call('HDEL', key, 'push_permit', 'push_orphan', 'push_counted')
  if state == 'handed_to_rq' then -- from now on the scripts ignore its meta, and RQ handles the job
    forget(key)
    if job.requeued then redis.call('LPUSH', '@rq:queue:' .. job.origin, job.id) end
    redis.call('HSET', key, 'push_rq_job', mark_of_rq(job))
    -- RQ 3 watches over started jobs only, and its work horse, which would write this status, may never begin.
    if job.status == 'queued' then redis.call('HSET', key, 'status', 'started', 'worker_name', look.worker) end
    local meta = redis.call('HGET', key, 'push_meta')
    if meta == '' then redis.call('HDEL', key, 'meta') elseif meta then redis.call('HSET', key, 'meta', meta) end
    redis.call('HDEL', key, 'push_meta')
    return
  end
  if state == 'queue' then
    if job.detail == 'end' then redis.call('HSET', key, 'push_returned', '1') end
    return queue_again(job, job.detail == 'end' and 'RPUSH' or 'LPUSH')
  end
  local us = tonumber(job.detail)
  if state == 'later' then add_one(key, 'push_attempts')
  elseif job.detail ~= '' then add_one(key, 'push_refusals') end
  note_answers(look, job, us and 'r')
  if state ~= 'backlog' then return wait(look, job, us) end
  if us then redis.call('HSET', key, 'push_wait', text(now + us)) end
  -- *settle* sets the wake-ups of the users that its caller named. A job that the caller has just read had none then.
  local what, user, lane = enter_backlog(now, job.id)
  if what == 'entered' then look_by(user, lane, now) end
  return what == 'rq_job' and unreadable(look, job)
end

-- again: somebody enqueued a job under this id during the send, so the hash is the new job's. The old one ends here.
-- If a worker has taken the new job out of its queue meanwhile, it goes back there.
local function again(job)
  forget(job.key)
  if job.requeued then redis.call('LPUSH', '@rq:queue:' .. job.origin, job.id) end
  local ended = job.state == 'delivered' or job.state == 'failed' or job.state == 'dropped'
  if not ended then job.word = 'superseded' end
end

-- cancelled: RQ cancelled the job during the send. The job is not tried again, and *end_cancelled* counts it.
local function cancelled(look, job)
  redis.call('HDEL', job.key, 'push_permit', 'push_orphan', 'push_counted')
  note_answers(look, job)
  end_cancelled(look.now, job.id)
  job.word = ''
end

-- move: moves the job to its next state. job.word becomes the outcome under which *settle* counts it. Returns whether
-- *settle* reports its end; other ends are reported where they happen.
local function move(look, job)
  local state = job.state
  job.requeued = redis.call('HGET', job.key, 'push_again')
  local anew = job.user ~= '' or job.requeued and (state == 'failed' or state == 'aside')
  if job.origin and job.status == 'queued' and anew then again(job) return true end
  if not job.origin then job.word = 'cancelled' return true end -- somebody deleted it
  if state == 'failed' then failed(look, job, ends.failed) return true end
  if state == 'aside' then failed(look, job, YEAR) return true end
  if state == 'dropped' then dropped(look, job)
  elseif job.status == 'canceled' and job.user ~= '' then cancelled(look, job)
  else return back(look, job) end
  return false
end

local function tell_feedback(look, id, user, gone)
  local oldest = text(math.max(0, math.floor(look.now / 1000) - look.keep_feedback))
  for _, dead in ipairs(gone) do
    local platform, token, app, reason, since = unpack(dead)
    redis.call('XADD', '@feedback', 'MINID', '~', oldest, '*', 'platform', platform, 'token', token, 'app', app,
      'user', user, 'reason', reason, 'gone_at', since == '' and look.now_text or since, 'job_id', id)
  end
  redis.call('PEXPIRE', '@feedback', text(look.keep_feedback))
end

local function close_devices(look, job, late)
  local targets, answered = unpack(redis.call('HMGET', job.key, 'push_targets', 'push_answered'))
  local devices = targets_of(targets or '', answered, nil)
  for _, device in ipairs(devices) do
    close_device(look, job, device, #devices == job.counted.devices, late)
  end
end
