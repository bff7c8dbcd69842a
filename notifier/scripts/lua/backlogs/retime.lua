-- retime: makes some of a lane's wake-ups due now, because the rules have changed and waits may be over.
-- ARGV 1 clock  2 lane  3 cursor ('0' to begin)  4 about how many wake-ups to look at
-- returns the next cursor, or '0' at the end
--! first_write
--! needs note_due now_us route_key text
local LET_GO = 1000 -- users let go at once that wait for a category's `overall`, which may have changed
local now, wake_ups = now_us(ARGV[1]), '@wakeups:' .. ARGV[2]
local found = redis.call('ZSCAN', wake_ups, ARGV[3], 'COUNT', ARGV[4])
local moved = false
for i = 1, #found[2], 2 do
  if tonumber(found[2][i + 1]) > now then
    redis.call('ZADD', wake_ups, 'XX', text(now), found[2][i])
    moved = true
  end
end
for _, name in ipairs(ARGV[3] == '0' and redis.call('SMEMBERS', '@routes') or {}) do
  if name:sub(1, 8) == 'overall:' then
    redis.call('HSET', route_key(name), 'until', text(now), 'room', LET_GO)
    note_due(now)
  end
end
if moved then note_due(now, ARGV[2]) end
return found[1]
