--! on_demand MAX_LINES LONGEST_PART part_of part_wake_up look_again
--! needs backlogs_key lanes_of note_due read_backlogs text
-- If a user has very many backlogs, a visit looks at a part of them only, or it would block Redis. The most urgent
-- lanes, as far as all their backlogs fit into half a part, are in each part; the other backlogs take turns.
--   #part  in @backlogs:{user}: '<how many backlogs were passed> <the first µs at which a head of these may go, or ->';
--          it begins anew once all were passed
local MAX_LINES = 50
-- µs between parts at most: outside a part a head may expire, or bypass the user's rules, before these let a job go.
local LONGEST_PART = 10000000

-- part_of: the part to be visited now of these backlogs, {category, lane, …}, in the lanes of `rank`; and the whole,
-- {lanes, passed, least, step, rest}. state: #part, or nil.
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
  local first = #all -- how many backlogs are in lanes that are in each part
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

-- part_wake_up: notes a visit to a part, and returns when the user is visited again. user_next: the first µs at which
-- the user's own rules let a job go. least: the first µs for a head of this part, or now if more may follow at once.
local function part_wake_up(user, whole, now, user_next, least)
  local at, passed = math.max(now, user_next), whole.passed + whole.step
  least = math.min(least, whole.least)
  if passed >= whole.rest then at, passed, least = math.max(at, least), 0, math.huge end
  redis.call('HSET', backlogs_key(user), '#part', text(passed) .. ' ' .. (least < math.huge and text(least) or '-'))
  return math.min(at, now + LONGEST_PART)
end

-- look_again: makes a user due now, as the wait may be over. A user who waits for a route has no wake-up, and waits on.
local function look_again(now, user)
  for lane in pairs(lanes_of(read_backlogs(user))) do
    redis.call('ZADD', '@wakeups:' .. lane, 'XX', 'LT', text(now), user)
    note_due(now, lane)
  end
end
