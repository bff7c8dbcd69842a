--! on_demand MAX_LINES LONGEST_PART part_of part_wake_up set_part_wake_ups look_again
--! needs backlogs_key lanes_of note_due read_backlogs text wake_ups_due
-- A user who waits in very many categories is looked at a part of the backlogs at a time, or one look would block
-- Redis. The lanes that are more urgent than the first large one are in each part, and the others take turns.
--   #part  in @backlogs:{user}: '<how many backlogs were passed> <the least µs at which a head of these may go>'; once
--          all were passed it begins anew
local MAX_LINES = 50
-- In µs: a head whose backlog was not looked at may expire, and its rules may open, before the user's do.
local LONGEST_PART = 10000000

-- part_of: of so many backlogs those to be looked at now, of the lanes in `rank`, {category, lane, …}; and the whole,
-- {lanes, passed, least, step, rest}. state: #part, if it is there.
local function part_of(found, state, rank)
  local all, part = {}, {}
  local whole = {lanes = lanes_of(found), passed = 0, least = math.huge, step = 1, rest = 1}
  local function put(name, lane) part[#part + 1], part[#part + 2] = name, lane end
  for i = 1, #found, 2 do
    if rank[found[i + 1]] then all[#all + 1] = {found[i], found[i + 1]} end
  end
  if state then
    local passed, least = state:match('^(%S+) (%S+)$')
    whole.passed, whole.least = tonumber(passed), tonumber(least) or math.huge
  end
  table.sort(all, function(a, b)
    if a[2] ~= b[2] then return rank[a[2]] < rank[b[2]] end
    return a[1] < b[1]
  end)
  local first = #all -- so many stand in lanes of which all is looked at
  if #all > MAX_LINES then
    first = 0
    for i = 1, MAX_LINES / 2 do
      if all[i][2] ~= all[i + 1][2] then first = i end
    end
    whole.step, whole.rest = MAX_LINES - first, #all - first
    for i = 0, whole.step - 1 do put(unpack(all[first + 1 + (whole.passed + i) % whole.rest])) end
  end
  for i = 1, first do put(unpack(all[i])) end
  return part, whole
end

-- part_wake_up: when a user of whom a part was looked at is to be looked at again. user_next: the first µs at which the
-- user's own rules let one go. least: that of the backlogs of this part, or now where any went: others may follow.
local function part_wake_up(user, whole, now, user_next, least)
  local at, passed = math.max(now, user_next), whole.passed + whole.step
  least = math.min(least, whole.least)
  if passed >= whole.rest then at, passed, least = math.max(at, least), 0, math.huge end
  redis.call('HSET', backlogs_key(user), '#part', text(passed) .. ' ' .. (least < math.huge and text(least) or '-'))
  return math.min(at, now + LONGEST_PART)
end

local function set_part_wake_ups(user, lanes, at)
  for lane in pairs(lanes) do
    redis.call('ZADD', '@wakeups:' .. lane, text(at), user)
    wake_ups_due[lane] = math.min(wake_ups_due[lane] or math.huge, at)
  end
end

-- look_again: what waits of a user's is looked at now, because its wait may be over. Who waits for a route goes on.
local function look_again(now, user)
  for lane in pairs(lanes_of(read_backlogs(user))) do
    redis.call('ZADD', '@wakeups:' .. lane, 'XX', 'LT', text(now), user)
    note_due(now, lane)
  end
end
