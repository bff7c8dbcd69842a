-- token: a sealed token that all workers share for an hour, such as that of an APNs team. Of several workers that
-- replace the same token, the first wins.
-- KEYS 3 hash {sealed, made}
-- ARGV 1 the token that the caller saw, '' for none  2 the token offered in its place, '' to look only
--      3 µs since the epoch at which the offered token was made
-- returns {the token now or '', µs at which it was made, µs now on Redis's clock}
--! first_write
--! needs now_us text
local LASTS_US = 3600 * 1000000
local key, seen, offered = KEYS[3], ARGV[1], ARGV[2]
local now = now_us('')
local found = redis.call('HMGET', key, 'sealed', 'made')
local sealed, made = found[1] or '', tonumber(found[2] or '0')
if offered ~= '' and sealed == seen then
  sealed, made = offered, tonumber(ARGV[3])
  redis.call('HSET', key, 'sealed', sealed, 'made', text(made))
  redis.call('PEXPIREAT', key, text(math.ceil((made + LASTS_US) / 1000)))
end
return {sealed, made, now}
