-- refund: takes back a permit, because nothing reached the user.
-- KEYS 1 the user's sends  2 the user's sends of the category (or the first again)
-- ARGV 1 permit  2 cost
-- returns 1, or 0 where the permit has lapsed or was refunded before
local found = 0
for _, key in ipairs(KEYS) do
  found = math.max(found, redis.call('ZREM', key, ARGV[1]))
  for n = 2, tonumber(ARGV[2]) do redis.call('ZREM', key, ARGV[1] .. '#' .. n) end
end
return found
