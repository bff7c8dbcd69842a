-- refund: gives a permit back, because nothing reached the user, and makes the user due at once.
-- KEYS 3 the user's sends  4 the user's sends of the category
-- ARGV 1 clock  2 permit  3 cost  4 user
-- returns 1, or 0 if the permit has lapsed or was refunded before
--! needs date_sends give_back look_again now_us remember
remember(ARGV[4])
local permit, found = ARGV[2], 0
for i = 3, #KEYS do
  local key = KEYS[i]
  local at, gone = redis.call('ZSCORE', key, permit), date_sends(key, permit, tonumber(ARGV[3]))
  if at then found = 1; give_back(key, tonumber(at), gone) end
end
if found == 1 then look_again(now_us(ARGV[1]), ARGV[4]) end
return found
