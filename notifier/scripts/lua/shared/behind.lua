-- A category whose lane has changed while notifications stand in the queue of the lane before. Those that are accepted
-- after them for the new lane are to come to their backlogs after them, whoever serves which lane:
--   @lanes            hash category -> lane, in which the last of it was accepted
--   @behind           hash category -> '<lane before> <how many stood there> <the last of them>', while they do
--   @behind:<category> list of job ids: what has come out of another queue meanwhile, in order
-- Every worker takes from the queue of the lane before, also one that does not serve it. A change of the lane while
-- another is under way waits for the end of that.
local function behind_key(category) return '@behind:' .. category end

-- read_behind: {category: {lane, left, tail}}.
local function read_behind()
  local fields, found = redis.call('HGETALL', '@behind'), {}
  for i = 1, #fields, 2 do
    local lane, left, tail = fields[i + 1]:match('^(%S+) (%S+) (.*)$')
    found[fields[i]] = {lane = lane, left = tonumber(left), tail = tail}
  end
  return found
end

local function note_behind(category, lane, left, tail)
  redis.call('HSET', '@behind', category, lane .. ' ' .. text(left) .. ' ' .. tail)
end
