--! exports replay_on burst_next keep_burst
-- A burst {capacity, every} is a token bucket: so many at once, and one more each `every` µs. What is left in it is
-- told by the µs at which it would be full again. @burst:{user}[:<category>] holds that (`full`) as of the
-- sends up to `at`, and with which `every`; those behind it, some in flight at the end of their lease, are gone
-- through at each look.
local REFUNDABLE = 10000000 -- so long after a send it may be taken back
local MAX_REPLAYED = 256

local function burst_state(sent, burst)
  local state = redis.call('HMGET', beside(sent, '@burst'), 'full', 'at', 'every')
  local full, at, every = tonumber(state[1] or 0), tonumber(state[2] or 0), tonumber(state[3] or 0)
  -- Under a changed rule as many stay used as were: all of them at the most.
  if every > 0 and full > at then full = at + math.ceil((full - at) / every * burst[2]) end
  return math.min(full, at + burst[1] * burst[2]), at
end

local function drain(full, at, burst) return math.min(math.max(full, at) + burst[2], at + burst[1] * burst[2]) end

local replays = {} -- by set, for as long as the call lasts: *replay_of*
-- replay_of: when the bucket is full again after each of its sends, from 0 for those before the first. latest: µs of
-- the last.
local function replay_of(sent, burst)
  local replay = replays[sent]
  if replay then return replay end
  local full, at = burst_state(sent, burst)
  local sends = redis.call('ZREVRANGEBYSCORE', sent, '+inf', '(' .. text(at), 'WITHSCORES', 'LIMIT', 0, MAX_REPLAYED)
  -- Only where the rule is new there are so many: as if the bucket had been empty then.
  if #sends == 2 * MAX_REPLAYED then full = sends[#sends] + burst[1] * burst[2] end
  replay = {[0] = full, n = #sends / 2, latest = tonumber(sends[2] or at)}
  for n = 1, replay.n do replay[n] = drain(replay[n - 1], tonumber(sends[#sends + 2 - 2 * n]), burst) end
  replays[sent] = replay
  return replay
end

-- replay_on: goes on with a send of now, unless it has to be gone through from the first again.
local function replay_on(sent, burst, at, cost)
  local replay = replays[sent]
  if not replay then return end
  if at < replay.latest or replay.n + cost >= MAX_REPLAYED then replays[sent] = nil return end
  for n = replay.n + 1, replay.n + cost do replay[n] = drain(replay[n - 1], at, burst) end
  replay.n, replay.latest = replay.n + cost, at
end

-- burst_next: the first µs at which `cost` more are in the bucket. Of sends in flight it is not known when they come,
-- and as many as leave room for `cost` hold nothing back wherever they are: so the latest ones may be left out of the
-- course of time, each for one that is taken out anyway, and the least that comes of it is right.
local function burst_next(sent, burst, cost)
  local replay, free, opens = replay_of(sent, burst), burst[1] - cost, math.huge
  for left = 0, math.min(free, replay.n) do
    opens = math.min(opens, replay[replay.n - left] - (free - left) * burst[2])
  end
  return opens
end

-- keep_burst: takes what may no longer be taken back into the state, now and then or if it is to leave the set.
local function keep_burst(sent, policy, now, cost, leaving)
  local burst, key = policy.burst, beside(sent, '@burst')
  local full, at = burst_state(sent, burst)
  local sends = redis.call('ZRANGEBYSCORE', sent, '(' .. text(at), text(now - REFUNDABLE), 'WITHSCORES', 'LIMIT', 0,
    MAX_FOLDED)
  local set_back = now <= at -- the clock was: what goes now would never be gone through
  if #sends < 2 * MANY and not (leaving and #sends > 0 or set_back) then return end
  local same = 0
  for i = 2, #sends, 2 do
    local sent_at = tonumber(sends[i])
    same = sent_at == at and same + 1 or 1
    full, at = drain(full, sent_at, burst), sent_at
  end
  -- Others may share the µs of the last one read, and no later look comes to them.
  local all = #sends == 2 * MAX_FOLDED and redis.call('ZCOUNT', sent, text(at), text(at)) or 0
  for _ = same + 1, math.min(all, same + burst[1]) do full = drain(full, at, burst) end
  for _ = 1, set_back and cost or 0 do full = drain(full, at, burst) end
  replays[sent] = nil
  redis.call('HSET', key, 'full', text(full), 'at', text(at), 'every', text(burst[2]))
  redis.call('PEXPIRE', key, text(math.ceil((math.max(full, now) - now + policy[2]) / 1000) + 1))
end
