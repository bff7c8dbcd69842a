-- look_again: what waits of a user's is looked at now, because its wait may be over. Who waits for a route goes on.
local function look_again(now, user)
  local lines = redis.call('HGETALL', lines_key(user))
  local seen = {}
  for i = 1, #lines, 2 do
    if lines[i]:sub(1, 1) ~= '#' and not seen[lines[i + 1]] then
      seen[lines[i + 1]] = true
      redis.call('ZADD', '@gates:' .. lines[i + 1], 'XX', 'LT', text(now), user)
      note_due(now, lines[i + 1])
    end
  end
  return lines
end
