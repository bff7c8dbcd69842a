--! on_demand older_sends
--! needs at_of sum_of upto reached
-- The part of sends.lua that few calls need: for sends in chunks, and for sends that are not the latest.
local older_sends = {}
local MANY, PART, LARGE = 127, 21, 4503599627370496 -- MANY: the most sends of a chunk; the others: see sends.lua
local floor, sub, pack, unpack = math.floor, string.sub, struct.pack, struct.unpack

-- moved: the same sends, with `by` added to each sum.
local function moved(data, by)
  local parts = {}
  for n = 1, #data / 16 do
    parts[n] = sub(data, 16 * n - 15, 16 * n - 7) .. pack('>I7', sum_of(data, n) + by)
  end
  return table.concat(parts)
end

local function index_of(s)
  if not s.index then s.index = s.older > 0 and redis.call('HGET', s.key, 'i') or '' end
  return #s.index / 18
end
-- line: of the n-th chunk: its number, the µs of its last send, and the sum up to its end; n = 0: the sum before all.
local function line(s, n)
  local lines = index_of(s)
  if n > 0 then return unpack('>I4I7I7', s.index, 18 * n - 17) end
  return 0, 0, lines > 0 and unpack('>I7', s.index, 18 * lines - 6) - s.older or 0
end
-- chunk: the sends of the n-th chunk, how many there are, the sum before the first of them, and the chunk's number.
local function chunk(s, n)
  local number, _, sum = line(s, n)
  local data = redis.call('HGET', s.key, pack('>I4', number))
  local _, _, before = line(s, n - 1)
  local many = #data / 16
  return data, many, sum_of(data, many) - (sum - before), number
end
-- find_line: the first chunk that ends beyond a sum (field 3) or a µs (field 2).
local function find_line(s, field, beyond)
  local low, high = 0, index_of(s)
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if (select(field, line(s, middle))) <= beyond then low = middle else high = middle end
  end
  return high
end

-- latest: the µs of the last send in chunks; 0 if there are no chunks.
function older_sends.latest(s) return (select(2, line(s, index_of(s)))) end

function older_sends.nth(s, n)
  if n > s.sum + s.older then return nil end
  local sum = (select(3, line(s, index_of(s)))) - (n - s.sum)
  local i = find_line(s, 3, sum)
  local data, many, base = chunk(s, i)
  return at_of(data, reached(data, many, base + sum - (select(3, line(s, i - 1)))))
end

-- weight_after: as in sends.lua, if all of the newest sends are later than t.
function older_sends.weight_after(s, t)
  local _, last, sum = line(s, index_of(s))
  if last <= t then return s.sum, s.n > 0 and at_of(s.newest, 1) or nil end
  local all, i = sum, find_line(s, 2, t)
  _, _, sum = line(s, i)
  local data, many, base = chunk(s, i)
  local n = upto(data, many, t)
  return s.sum + all - sum + sum_of(data, many) - sum_of(data, n, base), at_of(data, n + 1)
end

-- ends: sets the µs of the first and of the last send anew. chunked: the first chunk may have changed.
local function ends(s, chunked)
  s.last = s.n > 0 and at_of(s.newest, s.n) or older_sends.latest(s)
  if s.older == 0 then s.first = s.n > 0 and at_of(s.newest, 1) or 0
  elseif chunked then s.first = at_of(chunk(s, 1), 1) end
end

-- reopen: moves the chunks from the i-th on back to the newest sends.
local function reopen(s, i)
  local parts, n, weight = {}, 0, 0
  for l = i, index_of(s) do
    local data, many, base, number = chunk(s, l)
    parts[#parts + 1] = moved(data, weight - base)
    n, weight = n + many, weight + sum_of(data, many) - base
    redis.call('HDEL', s.key, pack('>I4', number))
  end
  parts[#parts + 1] = moved(sub(s.newest, 1, 16 * s.n), weight - s.base)
  s.newest, s.index, s.index_is_new = table.concat(parts), sub(s.index, 1, 18 * i - 18), true
  s.n, s.base, s.sum, s.older = s.n + n, 0, s.sum + weight, s.older - weight
end
-- reach: reopens each chunk that has a send later than µs `at`.
function older_sends.reach(s, at)
  if older_sends.latest(s) > at then reopen(s, find_line(s, 2, at)) end
  ends(s)
end

-- insert: inserts a send that is not the latest.
function older_sends.insert(s, at, id, cost)
  local n = upto(s.newest, s.n, at)
  local whole = sub(s.newest, 1, 16 * n) .. pack('>I7c2I7', at, id, sum_of(s.newest, n, s.base) + cost)
  s.newest = whole .. moved(sub(s.newest, 16 * n + 1, 16 * s.n), cost)
end

function older_sends.rebase(s) s.newest, s.base = moved(sub(s.newest, 1, 16 * s.n), -s.base), 0 end

-- trim: drops chunks that end no later than t, a few at once.
local function trim(s, t)
  for _ = 1, math.min(4, index_of(s)) do
    local number, last, sum = line(s, 1)
    if last > t then return end
    local _, _, before = line(s, 0)
    redis.call('HDEL', s.key, pack('>I4', number))
    s.index, s.index_is_new, s.older = sub(s.index, 19), true, s.older - (sum - before)
    ends(s, true)
  end
end

-- close: moves the first PART of the newest sends to the last chunk, or to a new one.
function older_sends.close(s, lapsed)
  trim(s, lapsed)
  local lines = index_of(s)
  local number, _, sum = line(s, lines)
  local last, last_sum = at_of(s.newest, PART), sum_of(s.newest, PART)
  local weight, data = last_sum - s.base, sub(s.newest, 1, 16 * PART)
  if lines > 0 then
    local before, many = chunk(s, lines)
    if many + PART <= MANY then
      data = before .. moved(data, sum_of(before, many) - s.base)
      s.index = sub(s.index, 1, -19)
    else
      number = number + 1
    end
  end
  if sum > LARGE then
    local parts, gone = {}, select(3, line(s, 0))
    for n = 1, #s.index / 18 do
      local of, at, reaches = line(s, n)
      parts[n] = pack('>I4I7I7', of, at, reaches - gone)
    end
    s.index, sum = table.concat(parts), sum - gone
  end
  redis.call('HSET', s.key, pack('>I4', number), data)
  s.index, s.index_is_new = s.index .. pack('>I4I7I7', number, last, sum + weight), true
  s.newest = moved(sub(s.newest, 16 * PART + 1, 16 * s.n), -last_sum)
  s.n, s.base, s.sum, s.older = s.n - PART, 0, s.sum - weight, s.older + weight
end

-- change_in: changes the cost of a send in a chunk; returns the chunk and by how much the cost grew, or nil.
local function change_in(data, many, base, at, id, cost)
  local n = upto(data, many, at)
  while n > 0 and at_of(data, n) == at and sub(data, 16 * n - 8, 16 * n - 7) ~= id do n = n - 1 end
  if n == 0 or at_of(data, n) ~= at then return nil end
  local before = sum_of(data, n - 1, base)
  local by = cost - (sum_of(data, n) - before)
  local kept = cost > 0 and sub(data, 16 * n - 15, 16 * n - 7) .. pack('>I7', before + cost) or ''
  return sub(data, 1, 16 * n - 16) .. kept .. moved(sub(data, 16 * n + 1), by), by
end

-- change: changes the cost of a send; 0 removes it. Returns by how much the cost grew; nil if the send is not there.
function older_sends.change(s, at, id, cost)
  local data, by = change_in(sub(s.newest, 1, 16 * s.n), s.n, s.base, at, id, cost)
  if data then
    s.newest, s.n, s.sum = data, #data / 16, s.sum + by
    ends(s)
    return by
  end
  local lines = index_of(s)
  if lines == 0 then return nil end
  local i = find_line(s, 2, at - 1) - 1
  local old, many, base, number
  repeat -- sends of one µs may be in several chunks
    i = i + 1
    old, many, base, number = chunk(s, i)
    data, by = change_in(old, many, base, at, id, cost)
  until data or i == lines or at_of(old, many) ~= at
  if not data then return nil end
  local parts, first, field = {sub(s.index, 1, 18 * i - 18)}, i, pack('>I4', number)
  if data ~= '' then redis.call('HSET', s.key, field, data)
  else first = i + 1; redis.call('HDEL', s.key, field) end
  for l = first, lines do
    local of, last, sum = line(s, l)
    if l == i then last = at_of(data, #data / 16) end
    parts[#parts + 1] = pack('>I4I7I7', of, last, sum + by)
  end
  s.index, s.index_is_new, s.older = table.concat(parts), true, s.older + by
  ends(s, true)
  return by
end

-- reward: subtracts `cost` from the latest sends, at most MANY of them; returns how much was subtracted.
function older_sends.reward(s, cost, lapsed, changed)
  local left = cost
  for _ = 1, MANY do
    if left == 0 or s.last <= lapsed then break end
    if s.n == 0 and s.older > 0 then reopen(s, index_of(s)) end
    if s.n == 0 then break end
    local at, id = unpack('>I7c2', s.newest, 16 * s.n - 15)
    local has = sum_of(s.newest, s.n) - sum_of(s.newest, s.n - 1, s.base)
    local by = math.min(has, left)
    changed(at, older_sends.change(s, at, id, has - by))
    left = left - by
  end
  return cost - left
end

-- after: {µs, cost, …} of the latest `most` sends after µs `after` and no later than `till`, the earliest first.
function older_sends.after(s, after, till, most)
  local parts, i = {}, index_of(s)
  local data, first, many, base = s.newest, upto(s.newest, s.n, after) + 1, upto(s.newest, s.n, till), s.base
  while true do
    for n = many, math.max(first, many - most + 1), -1 do
      parts[#parts + 1] = sum_of(data, n) - sum_of(data, n - 1, base)
      parts[#parts + 1] = at_of(data, n)
      most = most - 1
    end
    if most == 0 or first > 1 or i == 0 then break end
    data, many, base = chunk(s, i)
    first, many, i = upto(data, many, after) + 1, upto(data, many, till), i - 1
  end
  local found = {}
  for n = #parts, 1, -1 do found[#found + 1] = parts[n] end
  return found
end
