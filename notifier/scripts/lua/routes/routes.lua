--! on_demand FAR CLAIM route_key rests_key RESTS_KEPT circuit_of read_circuits has_older_rest change_hold
--! on_demand drop_hold probe_at
--! needs waiting_key
-- Holds. Each has a name and a state, and holds back heads of backlogs:
--   '<route>'                   the route's circuit is open. A route is the provider and app by which a device is
--                               reached, for browsers with the push service: 'apns', 'apns/driver', 'webpush@<host>'
--   '<route>|full'              the route's project has used up its minute
--   'overall:<category>|full'   the category has used up its rate for all users
--   '<route>|busy|<lane>'       a worker has as many sends under way by the route as its provider bears; a lane waits
-- A user whose head has no route that works waits here, and costs nothing until *pull* lets waiting users go, first
-- come, first served.
--   @routes            set of the names of the holds; nearly always empty
--   @route:<name>      hash: state, until (µs), room, and interval: a time that is set lies ahead by at most 1.25 times
--                              this and a second. A circuit also has others (like until, for workers without trouble),
--                              kind, reason, since, probe, prober, last (whose probe failed last), first (the worker
--                              that may have mended the route, and probes at once), and 'w:<worker>' for each worker
--                              that could not get through
--   @waiting_for_route:<name>     zset member -> µs since when: 'u<lane> <user>', whose head waits for this hold; or
--                              'j<job id>' -> its order in its backlog: the rest of a notification that other routes
--                              took (it is in `later`). So rests come back, and probe, in the order of their backlogs
--   @rests:{user}:<category> <route>   zset job id -> order: the rests of this backlog that wait for the route; no
--                              younger job of the backlog goes by the route before them
-- A head that has met a fault before (push_refusals) waits behind all others: its score is FAR higher.
-- The states:
--   'open'     only a probe goes. When `until` has passed, *pull* sets `probe` and lets one head go. probe: '' none,
--              '1' any head, 'new' a head without push_refusals: a fault that may lie in a message is proved by another
--              message, at once. prober: the worker that sends the probe
--   'closing'  all may go; each pull lets a batch of the waiting users go
--   'full'     there is no room before `until`
--   'paused'   a person (who, reason) has stopped it, until `until` or until it is resumed. People also pause 'all:',
--              'lane:<lane>', 'category:<category>' and 'user:<user>', which are names of holds as well
--   'busy'     each worker lets as many go as it has room for; the hold names its route and lane
local FAR = 4102444800000000 -- µs, the year 2100: when a rest is due that waits for nothing but a route
local LAST_PROBER_WAITS = 1200000 -- µs
local CLAIM = 250000 -- µs that *pull* waits for a probe before it lets another go

local function route_key(name) return '@route:' .. name end
local function rests_key(backlog, route) return '@rests' .. string.sub(backlog, #'@backlog' + 1) .. ' ' .. route end
local RESTS_KEPT = 2592000 -- s; a deleted job leaves its entry

local function circuit_of(name)
  local fields, hold = redis.call('HGETALL', route_key(name)), {}
  if #fields == 0 then return nil end
  for i = 1, #fields, 2 do hold[fields[i]] = fields[i + 1] end
  return hold
end

-- read_circuits: the holds by name, or nil, and the sorted names. A name without its hash holds nothing.
local function read_circuits()
  local holds, names = {}, {}
  for _, name in ipairs(redis.call('SMEMBERS', '@routes')) do
    holds[name] = circuit_of(name)
    if holds[name] then names[#names + 1] = name end
  end
  table.sort(names)
  return #names > 0 and holds or nil, names
end

-- has_older_rest: whether the rest of an older notification of the backlog waits for this route. Deletes entries of
-- rests that were cancelled or have expired.
local function has_older_rest(backlog, route, order)
  local key = rests_key(backlog, route)
  while true do
    local first = redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')
    if not first[1] or tonumber(first[2]) >= order then return false end
    local waits_for_route = redis.call('ZSCORE', waiting_key(route), 'j' .. first[1])
    if waits_for_route and redis.call('ZSCORE', '@later', first[1]) then return true end
    redis.call('ZREM', key, first[1])
  end
end

local function change_hold(name, hold, ...)
  local pairs_of = {...}
  for i = 1, #pairs_of, 2 do hold[pairs_of[i]] = pairs_of[i + 1] end
  redis.call('HSET', route_key(name), ...)
end

local function drop_hold(name)
  redis.call('SREM', '@routes', name)
  redis.call('DEL', route_key(name))
end

-- probe_at: when this worker may let the next probe go. A worker without trouble waits only briefly: if just the
-- others' network is broken, the route works again at once. The worker whose probe failed last lets other workers go
-- first. A time further ahead than any that is set is due: Redis's clock was set back.
local function probe_at(hold, worker, now)
  if hold.first == worker then return 0 end
  local others = not hold['w:' .. worker] and hold.others
  local at = tonumber(others or hold['until'])
  if hold.interval and at > now + 1.25 * hold.interval + LAST_PROBER_WAITS then return now end
  if not others and hold.last == worker and redis.call('SCARD', '@rq:workers') > 1 then at = at + LAST_PROBER_WAITS end
  return at
end
