--! on_demand marks
--! needs older_sends weight_after
-- Marks: what a limiter's key keeps besides its sends. A mark is four numbers, 32 bytes:
--   capacity, every µs, full, until   a burst: a token bucket. `full` is when it is full again, after all sends up to
--     `until`. Later sends were dated ahead, or have come since
--   0, 0, until, 0                    the key is blocked until then
--   1, 0, at, 0                       a place: a permit that was dated ahead to this µs was given back
local marks = {}
local MAX_TAKEN_IN, MAX_PLACES = 1000, 32
local max, min, pack, unpack, sub = math.max, math.min, struct.pack, struct.unpack, string.sub

-- find_mark: the byte at which the mark with this beginning is, or nil.
local function find_mark(s, head)
  for n = 1, #s.marks, 32 do
    if sub(s.marks, n, n + #head - 1) == head then return n end
  end
end
local BLOCK = pack('>I8I8', 0, 0)

-- set_mark: replaces the mark at byte n; without n, it appends a mark.
local function set_mark(s, n, first, second, third, fourth)
  local mark = pack('>I8I8i8i8', first, second, third, fourth)
  s.marks = n and sub(s.marks, 1, n - 1) .. mark .. sub(s.marks, n + 32) or s.marks .. mark
end

-- fill_burst: when a bucket is full again after one more send.
function marks.fill_burst(full, at, cost, capacity, every)
  return min(max(full, at) + cost * every, at + capacity * every)
end

-- burst_of: when the bucket is full again after all sends up to now, and the byte of its mark.
function marks.burst_of(s, capacity, every, now)
  local n, full, at = find_mark(s, pack('>I8I8', capacity, every)), 0, 0
  if n then full, at = unpack('>i8i8', s.marks, n + 16) end
  local back = max(0, at - now) -- if the clock was set back, the bucket stays as full as it was
  full, at = full - back, at - back
  local sends = s.last > at and older_sends.after(s, at, now, MAX_TAKEN_IN) or {}
  -- Only if the rule is new there are so many: then the bucket counts as empty at the first of them.
  if #sends == 2 * MAX_TAKEN_IN then full = sends[1] + capacity * every end
  for i = 1, #sends, 2 do full = marks.fill_burst(full, sends[i], sends[i + 1], capacity, every) end
  return full, n
end

-- take_burst: writes the mark, with a new send at µs `at` in it if that has come.
function marks.take_burst(s, capacity, every, now, at, cost)
  local full, n = marks.burst_of(s, capacity, every, now)
  if at <= now then full = marks.fill_burst(full, now, cost, capacity, every) end
  set_mark(s, n, capacity, every, full, now)
end

-- opens_burst: when the bucket has `cost` tokens (µs). Permits that are dated ahead hold nothing back as long as they
-- leave room for `cost`.
function marks.opens_burst(s, capacity, every, cost, now)
  local full = marks.burst_of(s, capacity, every, now)
  local free, later = capacity - cost, s.last > now and weight_after(s, now) or 0
  if later > free then
    local sends, rest = older_sends.after(s, now, 9007199254740992, 1000000), later - free
    for i = 1, #sends, 2 do
      local part = min(rest, sends[i + 1])
      if part > 0 then full = marks.fill_burst(full, sends[i], part, capacity, every) end
      rest = rest - part
    end
  end
  return full - max(0, free - later) * every
end

-- correct_bursts: corrects the bursts after the sends at µs `at` cost `by` more, or less. The bucket may have been full
-- since, so no more tokens come back than the sends from `at` on leave.
function marks.correct_bursts(s, at, by, now)
  for n = 1, #s.marks, 32 do
    local capacity, every, full, till = unpack('>I8I8i8i8', s.marks, n)
    if every > 0 and at <= till then
      local sends = older_sends.after(s, at - 1, till, MAX_TAKEN_IN)
      if by > 0 then
        set_mark(s, n, capacity, every, min(max(full, at) + by * every, max(full, now + capacity * every)), till)
      elseif #sends < 2 * MAX_TAKEN_IN then
        local least = 0
        for i = 1, #sends, 2 do least = max(least, sends[i]) + sends[i + 1] * every end
        set_mark(s, n, capacity, every, max(full + by * every, min(least, full)), till)
      end
    end
  end
end

function marks.blocked_until(s)
  local n = find_mark(s, BLOCK)
  return n and (unpack('>i8', s.marks, n + 16)) or 0
end
function marks.block_key(s, till) set_mark(s, find_mark(s, BLOCK), 0, 0, till, 0) end

-- free_places: the times of all places, the earliest first.
function marks.free_places(s)
  local found = {}
  for n = 1, #s.marks, 32 do
    local first, second, at = unpack('>I8I8i8', s.marks, n)
    if first == 1 and second == 0 then found[#found + 1] = at end
  end
  table.sort(found)
  return found
end
-- free_place: adds a place at a µs; take_place: removes it.
function marks.free_place(s, at)
  if #marks.free_places(s) < MAX_PLACES then set_mark(s, nil, 1, 0, at, 0) end
end
function marks.take_place(s, at)
  local n = find_mark(s, pack('>I8I8i8', 1, 0, at))
  s.marks = sub(s.marks, 1, n - 1) .. sub(s.marks, n + 32)
end

-- forget_marks: drops the marks that no longer have an effect.
function marks.forget_marks(s, now)
  local kept = {}
  for n = 1, #s.marks, 32 do
    local first, second, third, fourth = unpack('>I8I8i8i8', s.marks, n)
    if third > now or second > 0 and fourth > now - first * second then kept[#kept + 1] = sub(s.marks, n, n + 31) end
  end
  s.marks = table.concat(kept)
end
