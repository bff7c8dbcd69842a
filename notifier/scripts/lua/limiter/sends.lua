--! on_demand at_of sum_of upto reached read_sends write_sends nth_send weight_after insert_send
--! needs older_sends
-- The sends of a limiter's key, each with its cost; all are exact. (The sends of users' notifications are in sorted
-- sets, see rules/counts.lua.) A key is a hash:
--   h  the newest sends, and the marks (see marks.lua). Then 44 bytes: until when a rule needs the horizon (µs), the
--      horizon, the longest of the shorter rules (see *keep*), the sum before the newest sends, the cost of the sends
--      in chunks, and the µs of the first of these, 7 bytes each; how many marks there are, 2
--   i  for each chunk: its number, 4 bytes; the µs of its last send and the sum up to its end, 7 each
--   <number of a chunk>  older sends, up to six PARTs
-- A send is 16 bytes: µs (7), the end of its permit's id (2), and the sum of costs in its chunk up to its end (7). So a
-- call finds sends by binary search, and takes about as long with a million sends as with a hundred.
local HEAD, SEND = '>I7I7I7I7I7I7I2', '>I7c2I7'
local PART = 21 -- a chunk grows by this many sends, so that few sends are newest
local LARGE = 4503599627370496 -- 2^52: sums begin anew there, and so stay whole numbers
local call, floor, sub, pack, unpack = redis.call, math.floor, string.sub, struct.pack, struct.unpack

-- at_of, sum_of: the µs of the n-th send of a chunk, and the sum up to its end.
local function at_of(data, n) return (unpack('>I7', data, 16 * n - 15)) end
local function sum_of(data, n, base)
  if n == 0 then return base end
  return (unpack('>I7', data, 16 * n - 6))
end

-- upto: how many of n sends are no later than `most`; with sum_of: how many have a sum of at most `most`.
local function upto(data, n, most, of)
  of = of or at_of
  if n == 0 or of(data, 1) > most then return 0 end
  if of(data, n) <= most then return n end
  local low, high = 1, n
  while high - low > 1 do
    local middle = floor((low + high) / 2)
    if of(data, middle) <= most then low = middle else high = middle end
  end
  return low
end

-- reached: the first of n sends whose sum is more than `sum`; the caller knows that there is one.
local function reached(data, n, sum) return upto(data, n, sum, sum_of) + 1 end

-- read_sends: `newest` begins with the n newest sends. first, last: the µs of the first and of the latest send.
-- head: field h, if it has been read.
local function read_sends(key, head)
  if head == nil then head = call('HGET', key, 'h') end
  if not head then
    return {key = key, till = 0, horizon = 0, shorter = 0, base = 0, older = 0, first = 0, marks = '', newest = '',
      n = 0, sum = 0, last = 0}
  end
  local size = #head - 44
  local till, horizon, shorter, base, older, first, marks = unpack(HEAD, head, size + 1)
  local n, last, sum, _ = size / 16 - 2 * marks, 0, base, nil
  if n > 0 then
    last, _, sum = unpack(SEND, head, 16 * n - 15)
    if older == 0 then first = at_of(head, 1) end
  elseif older > 0 then
    last = older_sends.latest({key = key, older = older})
  end
  return {key = key, till = till, horizon = horizon, shorter = shorter, base = base, older = older, first = first,
    n = n, marks = marks > 0 and sub(head, 16 * n + 1, size) or '', newest = head, sum = sum - base, last = last}
end

local function write_sends(s)
  call('HSET', s.key, 'h', sub(s.newest, 1, 16 * s.n) .. s.marks ..
    pack(HEAD, s.till, s.horizon, s.shorter, s.base, s.older, s.first, #s.marks / 32))
  if s.index_is_new then call('HSET', s.key, 'i', s.index) end
  if s.lasts then call('PEXPIRE', s.key, string.format('%.0f', math.max(floor(s.lasts / 1000) + 2, s.least or 0))) end
end

-- nth_send: the µs of the n-th latest send, or nil. A send of cost 3 counts as three.
local function nth_send(s, n)
  if n == s.sum + s.older then return s.first end
  if n <= s.sum then return at_of(s.newest, reached(s.newest, s.n, s.base + s.sum - n)) end
  return s.older > 0 and older_sends.nth(s, n) or nil
end

-- weight_after: the cost of the sends later than t, and the µs of the first of them.
local function weight_after(s, t)
  if s.first > t then return s.older + s.sum, s.first end
  if s.last <= t then return 0 end
  local n = upto(s.newest, s.n, t)
  if n == 0 and s.older > 0 then return older_sends.weight_after(s, t) end
  return s.base + s.sum - sum_of(s.newest, n, s.base), n < s.n and at_of(s.newest, n + 1) or nil
end

-- insert_send: `id` is the end of the permit's id. Sends no later than `lapsed` may be dropped.
local function insert_send(s, at, id, cost, now, lapsed)
  if s.older == 0 and s.n > 0 and s.first <= lapsed then -- *close* drops chunks
    local n = upto(s.newest, s.n, lapsed)
    local sum = sum_of(s.newest, n)
    s.newest, s.n, s.sum = sub(s.newest, 16 * n + 1), s.n - n, s.sum - (sum - s.base)
    s.base, s.first = s.n > 0 and sum or 0, s.n > 0 and at_of(s.newest, 1) or 0
  end
  if s.older > 0 and s.last > at then older_sends.reach(s, at) end
  if s.base + s.sum > LARGE then older_sends.rebase(s) end
  if s.n == 0 or s.last <= at then
    s.newest = sub(s.newest, 1, 16 * s.n) .. pack(SEND, at, id, s.base + s.sum + cost)
    s.last = at
  else
    older_sends.insert(s, at, id, cost)
  end
  if s.older == 0 and (s.n == 0 or at < s.first) then s.first = at end
  s.n, s.sum = s.n + 1, s.sum + cost
  if s.n >= 2 * PART and at_of(s.newest, PART) < now then older_sends.close(s, lapsed) end
end
