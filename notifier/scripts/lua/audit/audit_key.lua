-- audit_key: puts right a key that was seen to hold what nobody stands for.
-- ARGV 1 clock  2 'permit' | 'claim' | 'parked'  3 key  4 of a set of permits the permit; of the parked their route
-- returns 1, or 0 where it has been put right meanwhile
-- The permit of what is no longer in flight may have been used until now: it is dated now, never removed.
--! include clock keys idle_leaders audit
local now, kind, key, of = now_us(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local mend = {}
function mend.permit() return date_permit(key, of, now) and 1 or 0 end
function mend.claim() return redis.call('PTTL', key) == -1 and redis.call('DEL', key) or 0 end
function mend.parked() return redis.call('SISMEMBER', '@routes', of) == 0 and redis.call('DEL', key) or 0 end
return mend[kind]()
