--! on_demand move tell_feedback close_devices mark_of_rq
--! needs close_device end_cancelled end_failed end_unsent ends enter_backlog forget free_dedupe history look_by number
--! needs seconds targets_of text
-- What becomes of a job beside that it was plainly delivered. look: of *settle*; job: as *settle* read it.
local YEAR = 31536000 -- as long as RQ keeps what failed
-- 'malformed: its meta cannot be read', as RQ stores the text of a failure.
local UNREADABLE = 'eJzLTcxJyy/KTU2xUsgsKVbITS1JVEhOzMvLL1FISlUoSk1MAQDd3wxv'

local function add_one(key, field) -- no HINCRBY: anything may stand there
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

-- note_answers: what a worker was answered of one that goes on. why: what holds it back from now on, or nil.
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

-- wait: it goes to its backlog after so many µs; or ends at its expiry, not at a wait after it.
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

-- unreadable: its meta tells nothing. That of a notification was written over in flight: a worker reads its data again.
-- What a worker has read cannot be read otherwise: it ends here. Returns whether it does.
local function unreadable(look, job)
  if job.user ~= '' then queue_again(job, 'LPUSH') return false end
  job.word, job.detail = 'failed', UNREADABLE
  failed(look, job, ends.failed)
  return true
end

-- mark_of_rq: what push_rq_job says of a job that RQ got from the holder of this permit; see job_key.lua.
local function mark_of_rq(job) return (job.user == '' and '0' or '') .. job.permit end

-- back: it goes on, there or in its backlog. Returns true where it ends instead.
local function back(look, job)
  local key, state, now = job.key, job.state, look.now
  redis.call('HDEL', key, 'push_permit', 'push_orphan', 'push_counted')
  if state == 'handed_to_rq' then -- from now on its meta steers nothing, and all that becomes of it is RQ's affair
    forget(key)
    if job.requeued then redis.call('LPUSH', '@rq:queue:' .. job.origin, job.id) end
    redis.call('HSET', key, 'push_rq_job', mark_of_rq(job))
    -- RQ 3 looks after what is started alone, and its work horse, which would say so, may never begin.
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
  -- The wake-ups are set below for a user who has something waiting; one whose backlog was adopted is new here.
  local what, user, lane = enter_backlog(now, job.id)
  if what == 'entered' then look_by(user, lane, now) end
  return what == 'rq_job' and unreadable(look, job)
end

-- again: somebody enqueued the job under its id while it was in flight, so its hash is the new one's. What was in
-- flight ends here, and the new one begins. Where it was taken out of its queue meanwhile, it goes back there.
local function again(job)
  forget(job.key)
  if job.requeued then redis.call('LPUSH', '@rq:queue:' .. job.origin, job.id) end
  local ended = job.state == 'delivered' or job.state == 'failed' or job.state == 'dropped'
  if not ended then job.word = 'superseded' end
end

-- cancelled: RQ's own cancel came while it was in flight: it is not tried again, and *end_cancelled* counts it.
local function cancelled(look, job)
  redis.call('HDEL', job.key, 'push_permit', 'push_orphan', 'push_counted')
  note_answers(look, job)
  end_cancelled(look.now, job.id)
  job.word = ''
end

-- move: the job goes to its next state; job.word becomes that under which it is counted. Returns whether its end is to
-- be told here: the others are told where they come about.
local function move(look, job)
  local state = job.state
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

-- tell_feedback: of the tokens that a provider called dead.
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
