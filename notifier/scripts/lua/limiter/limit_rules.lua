--! on_demand keep opens take room
--! needs insert_send marks nth_send weight_after write_sends
-- Applies the rules of a plan to a key's sends (see sends.lua). A plan is numbers of 8 bytes each: cost; gap; how long
-- a send is kept; capacity and interval of a burst (0: no burst); how many windows; limit and interval of each.
-- Then, for each calendar window: limit, how many dates follow, and when days (weeks, months) begin, from the current
-- one on. A rule's number: 0 the gap, n the n-th window (calendar windows come last), -2 the burst, -3 a block.
local max, min, unpack = math.max, math.min, struct.unpack

-- opens: when a plan admits its cost (µs), and the number of the deciding rule; or nil, and a µs that the dates of its
-- calendar windows do not reach.
local function opens(s, plan, now, cost, gap, capacity, every, windows)
  local at, rule = 0, -1
  local total, leaves = s.sum + s.older
  if gap > 0 and total > 0 then at, rule = s.last + gap, 0 end
  for w = 49, 33 + 16 * windows, 16 do
    -- `cost` more fit into (t - interval, t] once the (limit - cost + 1)-th latest send has left it.
    -- A cost above the limit is admitted once no other send counts.
    local limit, interval = unpack('>I8I8', plan, w)
    local nth = max(1, limit - cost + 1)
    if nth <= total then
      leaves = nth_send(s, nth) + interval
      if leaves > at then at, rule = leaves, (w - 33) / 16 end
    end
  end
  local w, n = 49 + 16 * windows, windows
  while w < #plan do
    local limit, many, begins, next_begins = unpack('>I8I8I8I8', plan, w)
    local nth = nth_send(s, max(1, limit - cost + 1)) or 0
    -- *room* needs one date after the one that admits the cost.
    if now < begins or now >= next_begins or nth >= unpack('>I8', plan, w + 8 * many) then
      return nil, max(now, nth)
    end
    local i = 0
    if nth >= begins then
      repeat i = i + 1; leaves = unpack('>I8', plan, w + 16 + 8 * i) until leaves > nth
      if leaves > at then at, rule = leaves, n + 1 end
    end
    w, n = w + 16 + 8 * many, n + 1
  end
  if capacity > 0 then
    local full = marks.opens_burst(s, capacity, every, min(cost, capacity), now)
    if full > at then at, rule = full, -2 end
  end
  if s.marks ~= '' then
    local till = marks.blocked_until(s)
    if till > at then at, rule = till, -3 end
  end
  return at, rule
end

-- keep: renews how long a key keeps its sends: as long as its longest rule needs them. After `till` no rule needs the
-- horizon; after another `shorter` µs no rule needs any send, and the key expires. Few sends have to renew this.
local function keep(s, kept, now, at)
  local old, till = s.till, at + kept
  if kept == s.horizon and old >= till then return end
  if kept < s.horizon and old > now then
    if kept <= s.shorter and at <= now then return end
    s.shorter = max(s.shorter, kept)
    if at > now then s.till = max(old, at + s.horizon) end
  else
    if kept < s.horizon then kept, s.shorter = max(kept, s.shorter), 0 end
    -- An eighth more, so that the next sends need not renew it.
    s.horizon, s.till = kept, max(old, at + kept) + math.floor(kept / 8)
  end
  s.lasts = s.till + s.shorter - now
end

-- take: records a send.
local function take(s, id, at, now, place, cost, kept, capacity, every)
  if kept == 0 then return end
  keep(s, kept, now, at)
  if capacity > 0 then marks.take_burst(s, capacity, every, now, at, cost) end
  if s.marks ~= '' then
    if place then marks.take_place(s, at) end
    marks.forget_marks(s, now)
  end
  insert_send(s, at, id, cost, now, now - s.horizon)
  write_sends(s)
end

-- room: how many more the windows admit at µs `at`, in how many µs they admit more, and the tightest window; or -1.
local function room(s, plan, at, now, windows)
  local remaining, more, narrowest, w, n = -1, -1, -1, 49, 1
  while w < #plan do
    local limit, interval = unpack('>I8I8', plan, w)
    local count, leaves
    if n <= windows then
      w = w + 16
      count, leaves = weight_after(s, at - interval)
      leaves = leaves and leaves + interval or at
    else
      local begins = unpack('>I8', plan, w + 16)
      for i = 1, interval do -- in a calendar window this is how many dates follow
        local each = unpack('>I8', plan, w + 8 + 8 * i)
        if each > at then leaves = each break end
        begins = each
      end
      w = w + 16 + 8 * interval
      count = weight_after(s, begins - 1)
    end
    local left = max(0, limit - count)
    if leaves and (remaining < 0 or left < remaining or left == remaining and leaves - now > more) then
      remaining, narrowest, more = left, n, max(0, leaves - now)
    end
    n = n + 1
  end
  return remaining, more, narrowest
end
