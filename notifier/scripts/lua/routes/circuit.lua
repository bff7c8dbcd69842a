-- circuit: opens or closes the circuit of a route, by what a worker has seen of the route.
-- ARGV a CIRCUIT, see records.py
-- returns 'opened', 'closed', 'paused' or 'resumed' if the circuit changed; 'alone' if other workers get through: the
--   trouble is the caller's own, no circuit opens, and the caller should leave the work to the others; else ''
-- If a worker opens a circuit and another worker gets through, the first worker is doubted until it gets through
-- itself. held_routes.lua, and *probe_at* of routes.lua, say when *pull* lets a probe go.
--! first_write
--! needs change_hold circuit_of drop_hold FAR note_due now_us waiting_key route_key text
local now, worker, route, seen = now_us(ARGV[CIRCUIT.clock]), ARGV[CIRCUIT.who], ARGV[CIRCUIT.route], ARGV[CIRCUIT.seen]
local OTHERS_PROBE = 200000 -- µs after the circuit opened; from then on a worker without trouble may probe
local RETRIES = 1000000 -- µs in which only the worker that may have mended the route probes
local RECENT, DOUBTED = 5000000, 600000000 -- µs for which a success counts, and a doubt
local reached, doubted = '@reached:' .. route, '@doubted:' .. route
local hold = circuit_of(route)

-- is_recent: a time far ahead was written before Redis's clock was set back, and is not recent either.
local function is_recent(at, most) return math.abs(now - tonumber(at)) < most end

local function others_reach_it()
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', reached, '(' .. text(now - RECENT), '(' .. text(now + RECENT))) do
    if other ~= worker then return true end
  end
  return false
end

-- let_go: closes the circuit. Each pull lets a batch of the waiting users go.
local function let_go()
  if redis.call('EXISTS', waiting_key(route)) == 0 then drop_hold(route)
  else change_hold(route, hold, 'state', 'closing', 'until', text(now)) end
  note_due(now)
end

local function up()
  redis.call('HDEL', doubted, worker)
  -- Names of workers are random by default: entries of workers that have gone would add up.
  redis.call('ZREMRANGEBYSCORE', reached, '-inf', text(now - RECENT))
  redis.call('ZADD', reached, text(now), worker)
  redis.call('PEXPIRE', reached, text(DOUBTED / 1000))
  if not hold or hold.state ~= 'open' then return '' end
  -- A full provider may still accept sends that were under way when it said so. That does not mean room for more.
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

-- down: opens the circuit for `first` µs. After a failed probe it stays open for half as long again, up to `most`. Both
-- are multiplied by `share`.
local function down(kind, reason, first, most, share)
  local full = kind == 'full' -- true for all workers alike
  if hold and hold.state == 'paused' then return '' end
  if not full then redis.call('ZREM', reached, worker) end
  if hold and hold.state == 'open' then
    local at = now + first * share
    if hold.prober == worker then -- its probe failed
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

-- retry: a worker has started with a configuration that may have mended the route. It probes first.
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
