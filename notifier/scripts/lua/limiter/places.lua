--! on_demand places
--! needs marks older_sends weight_after
-- Places: the times of permits that were dated ahead and given back (see marks.lua). Other permits may take them.
local places = {}
local unpack, MAX_LATER = struct.unpack, 200 -- a place with this many permits after it is not taken
local EVER = 9007199254740992

-- keeps_burst: whether the burst admits each send from a place on, with `cost` more at the place.
local function keeps_burst(s, place, now, cost, capacity, every)
  local full = marks.burst_of(s, capacity, every, now)
  local sends, i = older_sends.after(s, now, EVER, MAX_LATER), 1
  while sends[i] and sends[i] <= place do i = i + 2 end
  table.insert(sends, i, cost)
  table.insert(sends, i, place)
  for n = 1, #sends, 2 do
    if n >= i and full - (capacity - sends[n + 1]) * every > sends[n] then return false end
    full = marks.fill_burst(full, sends[n], sends[n + 1], capacity, every)
  end
  return true
end

local function fits(s, plan, place, now)
  local cost, gap, _, capacity, every, windows = unpack('>I8I8I8I8I8I8', plan)
  local later = older_sends.after(s, place, EVER, MAX_LATER)
  if #later == 2 * MAX_LATER or #plan >= 49 + 16 * windows then return false end -- too many, or calendar windows
  if capacity > 0 and not keeps_burst(s, place, now, cost, capacity, every) then return false end
  if gap > 0 then
    local before = older_sends.after(s, 0, place, 1)[1]
    if before and place - before < gap or later[1] and later[1] - place < gap then return false end
  end
  for w = 49, #plan, 16 do
    local limit, interval = unpack('>I8I8', plan, w)
    local i, ends = 1, place
    while ends and ends < place + interval do
      if weight_after(s, ends - interval) - weight_after(s, ends) + cost > limit then return false end
      ends, i = later[i], i + 2
    end
  end
  return true
end

-- for_plan: the earliest place before µs `at` that a plan may take; none before the end of a block.
function places.for_plan(s, plan, at, now)
  local from = math.max(now, marks.blocked_until(s))
  for _, place in ipairs(marks.free_places(s)) do
    if place >= at then return nil end
    if place >= from and fits(s, plan, place, now) then return place end
  end
end
