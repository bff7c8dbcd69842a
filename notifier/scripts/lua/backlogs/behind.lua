--! on_demand read_behind stands_behind pass_behind let_follow
--! needs job_key steering text
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

-- stands_behind: whether a job of a queue has to let those go first that stand in the queue of the lane before.
local function stands_behind(behind, id)
  local job = redis.pcall('HMGET', job_key(id), 'origin', 'meta', 'push_order')
  local meta = not job.err and job[1] and not job[3] and steering(job[2])
  local before = meta and behind[meta.category]
  if not before or before.lane == job[1] then return false end
  redis.call('RPUSH', behind_key(meta.category), id)
  return true
end

-- pass_behind: a job has left the queue of `lane`.
local function pass_behind(behind, lane, id)
  for _, before in pairs(behind) do
    if before.lane == lane then
      before.left = before.left - 1
      if before.tail == id then before.left, before.tail = 0, '' end
    end
  end
end

-- is_over: whether none stands in the queue of the lane before any more of those that stood there when the lane
-- changed.
local function is_over(before)
  if redis.call('LLEN', '@rq:queue:' .. before.lane) == 0 then return true end
  if before.left > 0 or before.tail == '' then return before.left <= 0 end
  -- It may have been deleted, or cancelled.
  local tail = redis.call('HMGET', job_key(before.tail), 'status', 'push_order')
  return tail[1] ~= 'queued' or tail[2] ~= false
end

-- let_follow: those that had to wait come to their backlogs, as far as there is room.
local function let_follow(look, category, before)
  if not is_over(before) then return note_behind(category, before.lane, before.left, before.tail) end
  local key = behind_key(category)
  for _, id in ipairs(redis.call('LPOP', key, look.most) or {}) do look.place(id) end
  if redis.call('EXISTS', key) == 1 then note_behind(category, before.lane, 0, '')
  else redis.call('HDEL', '@behind', category) end
end
