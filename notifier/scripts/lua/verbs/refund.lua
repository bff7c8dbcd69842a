-- refund: takes back a permit, because nothing reached the user; what waits is looked at again at once.
-- KEYS 1 the user's sends  2 the user's sends of the category (or the first again)
-- ARGV 1 clock  2 permit  3 cost  4 user
-- returns 1, or 0 where the permit has lapsed or was refunded before
--! include clock keys idle_leaders look_again forgotten
remember(ARGV[4])
local permit, found = ARGV[2], 0
for _, key in ipairs(KEYS) do
  found = math.max(found, redis.call('ZREM', key, permit))
  for n = 2, tonumber(ARGV[3]) do redis.call('ZREM', key, permit .. '#' .. n) end
end
if found == 1 then look_again(now_us(ARGV[1]), ARGV[4]) end
return found
