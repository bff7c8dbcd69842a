-- reset: forgets a user's sends; what waits is looked at again at once.
-- ARGV 1 clock  2 user  3.. categories to forget as well
-- returns how many sends of the user were forgotten
--! needs beside counted look_again now_us remember sent_key
local user = ARGV[2]
remember(user)
local forgotten = redis.call('ZCARD', sent_key(user)) + counted(sent_key(user))
local function forget(sent) redis.call('DEL', sent, beside(sent, '@counts'), beside(sent, '@burst')) end
forget(sent_key(user))
for i = 3, #ARGV do forget(sent_key(user, ARGV[i])) end
local backlogs = look_again(now_us(ARGV[1]), user)
for i = 1, #backlogs, 2 do
  if backlogs[i]:sub(1, 1) ~= '#' then forget(sent_key(user, backlogs[i])) end
end
return forgotten
