--! on_demand MAX_LINES LONGEST_PART is_backlog backlogs_in part_of part_wake_up set_part_wake_ups look_again
--! needs backlogs_key note_due text wake_ups_due
-- A user who waits in very many categories is looked at a part of the backlogs at a time, or one look would block
-- Redis. The lanes that are more urgent than the first large one are in each part, and the others take turns.
--   #part  in @backlogs:{user}: '<how many backlogs were passed in all> <how many since something was sent> <the
--          least µs at which a head of these may go>'
local MAX_LINES = 50
-- In µs: a head whose backlog was not looked at may expire, and its rules may open, before the user's do.
local LONGEST_PART = 10000000

local function is_backlog(field) return field:sub(1, 1) ~= '#' end

-- backlogs_in: how many backlogs a user has, and how many of them stand in each lane.
local function backlogs_in(fields)
  local n, lanes = 0, {}
  for i = 1, #fields, 2 do
    if is_backlog(fields[i]) then n, lanes[fields[i + 1]] = n + 1, (lanes[fields[i + 1]] or 0) + 1 end
  end
  return n, lanes
end

-- part_of: of the fields of @backlogs:{user} those to be looked at now, of the lanes in `rank`; and the whole,
-- {lanes, passed, quiet, least, step, rest}, or nil where these are all.
local function part_of(fields, rank)
  local count, lanes = backlogs_in(fields)
  if count <= MAX_LINES then return fields end
  local all, part = {}, {}
  local whole = {lanes = lanes, passed = 0, quiet = 0, least = math.huge, step = 1, rest = 1}
  local function put(name, value) part[#part + 1], part[#part + 2] = name, value end
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if not is_backlog(name) then put(name, value) elseif rank[value] then all[#all + 1] = {name, value} end
    if name == '#part' then
      local passed, quiet, least = value:match('^(%S+) (%S+) (%S+)$')
      whole.passed, whole.quiet, whole.least = tonumber(passed), tonumber(quiet), tonumber(least) or math.huge
    end
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
-- user's own rules let one go. least: that of the backlogs of this part. sent: whether any went.
local function part_wake_up(user, whole, now, user_next, least, sent)
  local quiet = sent and 0 or whole.quiet + whole.step
  least = math.min(least, sent and math.huge or whole.least)
  local at, over = math.max(now, user_next), quiet >= whole.rest
  if over then at = math.max(at, least) end
  if over or at > now then quiet, least = 0, math.huge end -- the next look begins anew
  local passed, ends = text((whole.passed + whole.step) % whole.rest), least < math.huge and text(least) or '-'
  local state = passed .. ' ' .. text(quiet) .. ' ' .. ends
  redis.call('HSET', backlogs_key(user), '#part', state)
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
  local fields = redis.call('HGETALL', backlogs_key(user))
  local _, lanes = backlogs_in(fields)
  for lane in pairs(lanes) do
    redis.call('ZADD', '@wakeups:' .. lane, 'XX', 'LT', text(now), user)
    note_due(now, lane)
  end
  return fields
end
