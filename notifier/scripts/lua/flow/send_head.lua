--! on_demand send_head
--! needs forget_candidate gather go history LANES orders pass_on text waits
local LATE = 1000000 -- µs after its rules let a head go; if it goes later, its history gets the reason 'k'

-- noted_until: push_history when the head goes. opened: µs at which its rules let it go.
local function noted_until(now, noted, opened)
  if opened and opened < now - LATE then
    local accepted, held = noted:match('^(%d+).* (%d+) [uc]%S*$')
    if held and opened > accepted + held then noted = history.add(noted, opened, 'k') end
  end
  return history.add(noted, now, 'f')
end

-- send_head: leases the head of backlog i to the caller. said: of *decide*, see *go*.
local function send_head(look, user, i, job, said)
  local backlog, permit = user.backlogs[i], text(orders.next())
  if history.was_held(job.noted) then
    go(look, user, backlog, job, permit, said, 'push_history', noted_until(look.now, job.noted, backlog.at))
  else go(look, user, backlog, job, permit, said) end
  redis.call('ZREM', backlog.key, job.id) -- last, so that it stays if the above fails
  waits.add(backlog.why, -1)
  if job.status == 'scheduled' then gather('ZREM', '@rq:scheduled:' .. job.origin, job.id)
  else -- a job that was enqueued again meanwhile may have another origin now
    for _, lane in ipairs(LANES) do gather('ZREM', '@rq:scheduled:' .. lane, job.id) end
  end
  if job.collapse then forget_candidate(user.name, backlog.category, job.id, job.collapse) end
  if job.deadline then gather('ZREM', '@expiring', job.id) end
  pass_on(user, i)
end
