-- One idle worker keeps watch for all: it sleeps until notifier:alarm (µs), the next thing that falls due.
-- Whoever makes something due earlier moves the alarm and nudges the watch through the list notifier:nudge.
-- Without a watch there is no alarm, and no nudge: busy workers look by themselves.
local function alarm(at)
  local set = redis.call('GET', 'notifier:alarm')
  if set and at < tonumber(set) then
    redis.call('SET', 'notifier:alarm', text(at), 'KEEPTTL')
    redis.call('DEL', 'notifier:nudge')
    redis.call('RPUSH', 'notifier:nudge', '1')
  end
end
