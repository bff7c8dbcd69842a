-- reset: forgets a user's sends, but not what is in flight, which reaches the user later; what waits is looked at again
-- at once.
-- ARGV 1 clock  2 user  3.. categories to forget as well
-- returns how many sends of the user were forgotten
--! needs beside counted drop_sends in_flight look_again now_us remember sent_key
local user, now = ARGV[2], now_us(ARGV[1])
remember(user)
local categories, backlogs = {unpack(ARGV, 3)}, look_again(now, user)
for i = 1, #backlogs, 2 do
  if backlogs[i]:sub(1, 1) ~= '#' then categories[#categories + 1] = backlogs[i] end
end
local some_in_flight = in_flight(user, categories)

local function forget(category)
  local sent = sent_key(user, category)
  local folded = counted(sent)
  redis.call('DEL', beside(sent, '@counts'), beside(sent, '@burst'))
  return folded + drop_sends(sent, some_in_flight, now)
end

for _, category in ipairs(categories) do forget(category) end
return forget()
