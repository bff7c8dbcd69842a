-- circuit: what a worker has seen of a route: it opens the circuit or closes it.
-- ARGV a CIRCUIT, see records.py
-- returns 'opened', 'closed', 'paused' or 'resumed' where this changed it; 'alone' where the trouble is the caller's
--   own, as others get through: nothing is held, and the caller should leave the work to them; else ''
-- Who opened it and was proved wrong by another worker is doubted until it gets through itself. When *pull* lets a
-- probe go: held_routes.lua, and *probe_at* of routes.lua.
--! first_write
--! needs change_hold circuit_of drop_hold FAR note_due now_us waiting_key route_key text
local now, worker, route, seen = now_us(ARGV[CIRCUIT.clock]), ARGV[CIRCUIT.who], ARGV[CIRCUIT.route], ARGV[CIRCUIT.seen]
local OTHERS_PROBE = 200000 -- µs after it opened: then a worker that had no trouble itself may probe
local RETRIES = 1000000 -- µs in which whoever may have mended it is the only one to probe
local RECENT, DOUBTED = 5000000, 600000000 -- µs that a success, and a doubt, count for
local MANY = 100 -- workers that got through
local reached, doubted = '@reached:' .. route, '@doubted:' .. route
local hold = circuit_of(route)

-- is_recent: what is ahead by as much is of before Redis's clock was set back, and says nothing now.
local function is_recent(at, most) return math.abs(now - tonumber(at)) < most end

local function others_reach_it()
  local at = redis.call('HGETALL', reached)
  for i = 1, #at, 2 do
    if at[i] ~= worker and is_recent(at[i + 1], RECENT) then return true end
  end
  return false
end

-- forget_old: names of workers are random where nobody chose them, so those that have gone are many in time.
local function forget_old()
  local at = redis.call('HLEN', reached) > MANY and redis.call('HGETALL', reached) or {}
  for i = 1, #at, 2 do
    if not is_recent(at[i + 1], RECENT) then redis.call('HDEL', reached, at[i]) end
  end
end

-- let_go: what waited is let go of, a batch with each pull.
local function let_go()
  if redis.call('EXISTS', waiting_key(route)) == 0 then drop_hold(route)
  else change_hold(route, hold, 'state', 'closing', 'until', text(now)) end
  note_due(now)
end

local function up()
  forget_old()
  redis.call('HDEL', doubted, worker)
  redis.call('HSET', reached, worker, text(now))
  redis.call('PEXPIRE', reached, text(DOUBTED / 1000))
  if not hold or hold.state ~= 'open' then return '' end
  -- What was under way when the provider said that it is full may still be taken: that is no room for more.
  if hold.kind == 'full' and hold.prober ~= worker then return '' end
  for field in pairs(hold) do
    local other = field:match('^w:(.*)$')
    if other and other ~= worker then
      redis.call('HSET', doubted, other, text(now))
      redis.call('PEXPIRE', doubted, text(DOUBTED / 1000))
    end
  end
  let_go()
  return 'closed'
end

-- down: opens the circuit for `first` µs; where a probe has come to nothing, for half as long again, up to `most`.
-- share: what both are multiplied by.
local function down(kind, reason, first, most, share)
  local full = kind == 'full' -- as it is for all workers alike
  if hold and hold.state == 'paused' then return '' end
  if not full then redis.call('HDEL', reached, worker) end
  if hold and hold.state == 'open' then
    local at = now + first * share
    if hold.prober == worker then -- its probe came to nothing
      local interval = math.max(first, math.min(math.floor(1.5 * hold.interval), most))
      at = now + interval * share
      change_hold(route, hold, 'interval', text(interval), 'until', text(at), 'others', text(at), 'prober', '',
        'last', full and '' or worker, 'kind', kind, 'reason', reason)
    elseif full and hold.kind == 'full' and at > tonumber(hold['until']) then
      change_hold(route, hold, 'until', text(at), 'others', text(at), 'interval', text(first))
    end
    if not full then change_hold(route, hold, 'w:' .. worker, text(now)) end
    return ''
  end
  local since = redis.call('HGET', doubted, worker) or 0
  if not full and is_recent(since, DOUBTED) and others_reach_it() then return 'alone' end
  local at = now + first * share
  local others = full and at or math.min(at, now + OTHERS_PROBE)
  drop_hold(route)
  redis.call('SADD', '@routes', route)
  change_hold(route, {}, 'state', 'open', 'kind', kind, 'reason', reason, 'since', text(now), 'interval', text(first),
    'until', text(at), 'others', text(others), 'probe', kind == 'fault' and 'new' or '', 'prober', '')
  if not full then redis.call('HSET', route_key(route), 'w:' .. worker, text(now)) end
  note_due(others)
  return 'opened'
end

local function next_probe()
  if hold and hold.state == 'open' and hold.prober == worker then
    change_hold(route, hold, 'until', text(now), 'others', text(now), 'prober', '')
    note_due(now)
  end
  return ''
end

-- retry: a worker has begun with a configuration that may have mended it. It probes first.
local function retry()
  if hold and hold.state == 'open' and hold.kind ~= 'full' then
    local at = text(now + RETRIES)
    change_hold(route, hold, 'until', at, 'others', at, 'first', worker, 'probe', '')
    note_due(now)
  end
  return ''
end

local function pause(lasts, reason)
  local at = lasts > 0 and now + lasts or FAR
  drop_hold(route)
  redis.call('SADD', '@routes', route)
  change_hold(route, {}, 'state', 'paused', 'kind', 'paused', 'reason', reason, 'who', worker, 'since', text(now),
    'until', text(at))
  note_due(at)
  return 'paused'
end

local function resume()
  if not hold or hold.state ~= 'paused' then return '' end
  let_go()
  return 'resumed'
end

if seen == 'pause' then return pause(tonumber(ARGV[CIRCUIT.lasts_us]), ARGV[CIRCUIT.reason]) end
if seen == 'resume' then return resume() end
if seen == 'up' then return up() end
if seen == 'retry' then return retry() end
if seen == 'next' then return next_probe() end
return down(ARGV[CIRCUIT.kind], ARGV[CIRCUIT.reason], tonumber(ARGV[CIRCUIT.first_us]), tonumber(ARGV[CIRCUIT.max_us]),
  ARGV[CIRCUIT.share] / 1000)
