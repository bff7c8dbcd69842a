-- reset: forgets a user's sends, but not what is in flight, which reaches the user later; what waits is looked at again
-- at once.
-- ARGV 1 clock  2 user  3.. categories to forget as well
-- returns how many sends of the user were forgotten
--! needs beside claim_key counted look_again now_us remember sent_key text
local user, now = ARGV[2], now_us(ARGV[1])
remember(user)
local scopes, claims, backlogs = {unpack(ARGV, 3)}, {}, look_again(now, user)
for i = 1, #backlogs, 2 do
  if backlogs[i]:sub(1, 1) ~= '#' then scopes[#scopes + 1] = backlogs[i] end
end
for i, category in ipairs(scopes) do claims[i] = claim_key(user, category) end
local in_flight = #claims > 0 and redis.call('EXISTS', unpack(claims)) > 0

local function forget(category)
  local sent = sent_key(user, category)
  local all = counted(sent) + redis.call('ZCARD', sent)
  redis.call('DEL', beside(sent, '@counts'), beside(sent, '@burst'))
  -- Where nothing is in flight, what is dated ahead is so because the clock was set back.
  redis.call('ZREMRANGEBYSCORE', sent, '-inf', in_flight and text(now) or '+inf')
  return all - redis.call('ZCARD', sent)
end

for _, category in ipairs(scopes) do forget(category) end
return forget()
