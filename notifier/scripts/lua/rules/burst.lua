--! on_demand keep_burst burst_next give_back
--! needs last_for text
-- A burst {capacity, every µs} is a token bucket: it refills by one token each `every` µs. One number tells all of it,
-- the µs at which it is full again: until then (that - now) / every tokens are missing.
--   @burst:{user}[:<category>]   hash capacity and every -> that number, and up to which µs the sends of the set beside
--     it are in it; 8 bytes each
-- Each rule has its own, so none that is shorter shortens another. What stands in the set later than that µs is in
-- flight, at the end of its lease, or dated ahead, or has come since; each send is taken in once, when it is over.
local MAX_TAKEN_IN = 1000
local function burst_key(sent) return (string.gsub(sent, ':%l+:', ':burst:', 1)) end

-- full_after: the µs at which it is full again with these sends, {permit, µs, …} from the latest to the earliest, added
-- to what `full` tells.
local function full_after(full, sends, burst)
  for i = #sends, 2, -2 do
    local at = tonumber(sends[i])
    full = math.min(math.max(full, at) + burst[2], at + burst[1] * burst[2])
  end
  return full
end

-- keep_burst: takes in what was sent before now, and keeps that as long as it can matter. Without now it only reads.
-- Returns when the bucket is full again, up to which µs sends are in that, and how many are later.
local function keep_burst(sent, burst, now)
  local key, field = burst_key(sent), struct.pack('>I8I8', burst[1], burst[2])
  local full, at = 0, 0
  local state = redis.call('HGET', key, field)
  if state then full, at = struct.unpack('>i8i8', state) end
  local back = now and math.max(0, at + 1 - now) or 0 -- the clock was set back: as much is used as before
  full, at = full - back, at - back
  local later = redis.call('ZCOUNT', sent, '(' .. text(at), '+inf')
  local sends = now and later > 0 and redis.call('ZREVRANGEBYSCORE', sent, '(' .. text(now), '(' .. text(at),
    'WITHSCORES', 'LIMIT', 0, MAX_TAKEN_IN) or {}
  if #sends == 0 and back == 0 then return full, at, later end
  -- So many are there only where the rule is new: as if the bucket had been empty at the first that was read.
  if #sends == 2 * MAX_TAKEN_IN then full = sends[#sends] + burst[1] * burst[2] end
  full, at = full_after(full, sends, burst), now - 1
  local lasts = math.ceil((math.max(full, now) - now + burst[1] * burst[2]) / 1000) + 1
  redis.call('HSET', key, field, struct.pack('>i8i8', full, at))
  last_for(key, text(lasts))
  return full, at, redis.call('ZCOUNT', sent, '(' .. text(at), '+inf')
end

-- burst_next: the first µs at which `cost` more are in the bucket. Of sends in flight it is not known when they come,
-- and as many as leave room for `cost` hold nothing back wherever they are; the others count when their leases end.
local function burst_next(sent, burst, cost, now)
  local full, at, later = keep_burst(sent, burst, now)
  local free = burst[1] - cost
  if later > free then
    full = full_after(full, redis.call('ZREVRANGEBYSCORE', sent, '+inf', '(' .. text(at), 'WITHSCORES', 'LIMIT', free,
      later), burst)
  end
  return full - math.max(0, free - later) * burst[2]
end

-- give_back: n sends of µs `at`, which are no longer in the set, were never made. The others may have found the bucket
-- full because of them: then no more comes back than those leave.
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
        -- As if it had been empty before these.
        full = math.max(full - n * burst[2], full_after(at, sends, burst))
        redis.call('HSET', key, states[i], struct.pack('>i8i8', full, till))
      end
    end
  end
end
