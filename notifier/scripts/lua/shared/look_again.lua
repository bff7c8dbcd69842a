-- look_again: what waits of a user's is looked at now, because its wait may be over. Who waits for a route goes on.
local function look_again(now, user)
  local backlogs = redis.call('HGETALL', backlogs_key(user))
  local seen = {}
  for i = 1, #backlogs, 2 do
    if backlogs[i]:sub(1, 1) ~= '#' and not seen[backlogs[i + 1]] then
      seen[backlogs[i + 1]] = true
      redis.call('ZADD', '@gates:' .. backlogs[i + 1], 'XX', 'LT', text(now), user)
      note_due(now, backlogs[i + 1])
    end
  end
  return backlogs
end
