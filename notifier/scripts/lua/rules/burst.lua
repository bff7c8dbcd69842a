--! on_demand keep_burst burst_next give_back
--! needs last_for text
-- A burst {capacity, every µs} is a token bucket that refills by one token each `every` µs. Its whole state is one
-- number, `full`: the µs at which it is full again. Until then (full - now) / every tokens are missing.
--   @burst:{user}[:<category>]   hash, capacity and every -> `full`, and `till`: the sends up to this µs of the sorted
--     set beside it are counted in `full`; 8 bytes each
-- Each rule has a field of its own, so a shorter rule does not shorten a longer one. Sends after `till` are in flight,
-- dated at the end of their lease, or new. Each send is counted in `full` once, when it is over.
local MAX_TAKEN_IN = 1000
local function burst_key(sent) return (string.gsub(sent, ':%l+:', ':burst:', 1)) end

-- full_after: `full` after these sends as well, {permit, µs, …} from the latest to the earliest.
local function full_after(full, sends, burst)
  for i = #sends, 2, -2 do
    local at = tonumber(sends[i])
    full = math.min(math.max(full, at) + burst[2], at + burst[1] * burst[2])
  end
  return full
end

-- keep_burst: counts the sends before now in `full`, and keeps the key as long as it can matter. Without `now` it only
-- reads. Returns `full`, `till`, and how many sends are later than `till`.
local function keep_burst(sent, burst, now)
  local key, field = burst_key(sent), struct.pack('>I8I8', burst[1], burst[2])
  local full, at = 0, 0
  local state = redis.call('HGET', key, field)
  if state then full, at = struct.unpack('>i8i8', state) end
  local back = now and math.max(0, at + 1 - now) or 0 -- if the clock was set back: as many tokens are missing as before
  full, at = full - back, at - back
  local later = redis.call('ZCOUNT', sent, '(' .. text(at), '+inf')
  local sends = now and later > 0 and redis.call('ZREVRANGEBYSCORE', sent, '(' .. text(now), '(' .. text(at),
    'WITHSCORES', 'LIMIT', 0, MAX_TAKEN_IN) or {}
  if #sends == 0 and back == 0 then return full, at, later end
  -- Only a new rule finds so many sends: assume that the bucket was empty at the first send that was read.
  if #sends == 2 * MAX_TAKEN_IN then full = sends[#sends] + burst[1] * burst[2] end
  full, at = full_after(full, sends, burst), now - 1
  local lasts = math.ceil((math.max(full, now) - now + burst[1] * burst[2]) / 1000) + 1
  redis.call('HSET', key, field, struct.pack('>i8i8', full, at))
  last_for(key, text(lasts))
  return full, at, redis.call('ZCOUNT', sent, '(' .. text(at), '+inf')
end

-- burst_next: the first µs at which the bucket has `cost` tokens. Nobody knows yet when a send in flight happens. As
-- many of them as leave room for `cost` hold nothing back whenever they happen; the others count at their leases' ends.
local function burst_next(sent, burst, cost, now)
  local full, at, later = keep_burst(sent, burst, now)
  local free = burst[1] - cost
  if later > free then
    full = full_after(full, redis.call('ZREVRANGEBYSCORE', sent, '+inf', '(' .. text(at), 'WITHSCORES', 'LIMIT', free,
      later), burst)
  end
  local opens = full - math.max(0, free - later) * burst[2]
  if later == 0 then return opens end
  -- A send that bypasses the rules leaves the bucket empty at worst.
  return math.min(opens, redis.call('ZREVRANGE', sent, '0', '0', 'WITHSCORES')[2] + cost * burst[2])
end

-- give_back: gives back the tokens of n sends at µs `at` that were never made and are out of the set. The bucket gets
-- no more tokens than the sends after `at` leave.
local function give_back(sent, at, n)
  local key = burst_key(sent)
  local states = redis.call('HGETALL', key)
  for i = 1, #states, 2 do
    local full, till = struct.unpack('>i8i8', states[i + 1])
    if at <= till then
      local burst = {struct.unpack('>I8I8', states[i])}
      local sends = redis.call('ZREVRANGEBYSCORE', sent, text(till), text(at - burst[1] * burst[2]), 'WITHSCORES',
        'LIMIT', 0, MAX_TAKEN_IN)
      if #sends < 2 * MAX_TAKEN_IN then
        -- The pessimistic bound: as if the bucket had been empty before these sends.
        full = math.max(full - n * burst[2], full_after(at, sends, burst))
        redis.call('HSET', key, states[i], struct.pack('>i8i8', full, till))
      end
    end
  end
end
