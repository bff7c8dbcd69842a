-- reset: forgets a user's sends, but not what is in flight, which reaches the user later; what waits is looked at again
-- at once.
-- ARGV 1 clock  2 user  3.. categories to forget as well
-- returns how many sends of the user were forgotten
--! needs beside counted look_again now_us remember sent_key text
local user, now = ARGV[2], now_us(ARGV[1])
remember(user)
local function forget(sent)
  redis.call('DEL', beside(sent, '@counts'), beside(sent, '@burst'))
  return redis.call('ZREMRANGEBYSCORE', sent, '-inf', text(now))
end
local forgotten = counted(sent_key(user))
forgotten = forgotten + forget(sent_key(user))
for i = 3, #ARGV do forget(sent_key(user, ARGV[i])) end
local backlogs = look_again(now, user)
for i = 1, #backlogs, 2 do
  if backlogs[i]:sub(1, 1) ~= '#' then forget(sent_key(user, backlogs[i])) end
end
return forgotten
