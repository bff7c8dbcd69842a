-- audit_key: puts right a key that was seen to hold what cannot be right.
-- ARGV 1 clock  2 'permit' | 'claim' | 'waits_for_route' | 'route' | 'type'  3 key  4 of permits the permit; of
--      users who wait their route; of a route its `until`; else the type that is wrong
-- returns 1, or 0 where it has been put right meanwhile
-- The permit of what is no longer in flight may have been used until now: it is dated now, never removed.
--! needs date_permit note_due now_us text
local now, kind, key, of = now_us(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local mend = {}
function mend.permit() return date_permit(key, of, now) and 1 or 0 end
function mend.claim() return redis.call('PTTL', key) == -1 and redis.call('DEL', key) or 0 end
function mend.waits_for_route() return redis.call('SISMEMBER', '@routes', of) == 0 and redis.call('DEL', key) or 0 end
-- As a worker does that has begun with another configuration: the next probe may go now.
function mend.route()
  if redis.call('HGET', key, 'until') ~= of then return 0 end
  redis.call('HSET', key, 'until', text(now), 'others', text(now))
  note_due(now)
  return 1
end
function mend.type() return redis.call('TYPE', key).ok == of and redis.call('DEL', key) or 0 end
return mend[kind]()
