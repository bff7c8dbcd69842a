--! on_demand FAR CLAIM route_key rests_key RESTS_KEPT circuit_of read_circuits has_older_rest change_hold
--! on_demand drop_hold probe_at
--! needs waiting_key
-- What is held. A route ('apns', 'fcm', 'apns/driver', 'webpush@<host>': by which provider and app a device is
-- reached, and of browsers by which push service) is held while its circuit is open; its project's limit is held
-- under '<route>|full' while the minute is full; under 'overall:<category>|full' a category whose pace for all users is
-- reached; and under '<route>|busy|<lane>' what waits in a lane because a worker has as much under way by the route,
-- whatever the push service, as its provider bears. Who can go by nothing that is open waits there, and costs
-- nothing until *pull* lets go of what waits, first come, first served.
--   @routes            set of the names of what is held; there is none nearly always
--   @route:<name>      hash: state, until (µs), interval (what is set is no further ahead than this, a quarter of it
--                              and a second) and room; of a circuit also others (as until, for workers that had no
--                              trouble), kind, reason, since, probe, prober, last (whose probe came to nothing), first
--                              (who may have mended it, and probes at once), and 'w:<worker>' for each worker that
--                              could not get through
--   @waiting_for_route:<name>     zset member -> µs since when: 'u<lane> <user>', whose head there waits for this; or
--                              'j<job id>' -> its order in its backlog, the rest of a notification that other routes
--                              took (it stands in `later`): so rests come back, and probe, in the order of their
--                              backlogs
--   @rests:{user}:<category> <route>   zset job id -> order: the rests of this backlog that wait for the route;
--                              nothing younger of the backlog goes by it before them
-- Whose head has met a fault before (push_refusals) waits behind all others: its score is FAR higher.
-- state 'open': closed to all but the probe: once `until` has come, *pull* sets `probe` and lets one go. probe is ''
-- for none; '1' for any head; 'new' for one without push_refusals: so a fault that may be its message's own is proved
-- by another message, at once. prober: the worker that has it. state 'closing': open to all; who waits is let go of, a
-- batch with each pull. state 'full': until then no room. state 'paused': a person has stopped it (who, reason), until
-- then or until it is resumed. Beside routes people pause 'all:', 'lane:<lane>', 'category:<category>' and
-- 'user:<user>', under these names. state 'busy': each worker lets go of as many as it has room for. route, lane: of
-- which.
local FAR = 4102444800000000 -- 2100: the time of a rest that waits for a route alone
local LAST_PROBER_WAITS = 1200000 -- µs
local CLAIM = 250000 -- so long *pull* waits for the probe that it let go before it lets go of another

local function route_key(name) return '@route:' .. name end
local function rests_key(backlog, route) return '@rests' .. string.sub(backlog, #'@backlog' + 1) .. ' ' .. route end
local RESTS_KEPT = 2592000 -- s; what is left in it by one that was deleted

local function circuit_of(name)
  local fields, hold = redis.call('HGETALL', route_key(name)), {}
  if #fields == 0 then return nil end
  for i = 1, #fields, 2 do hold[fields[i]] = fields[i + 1] end
  return hold
end

-- read_circuits: all that is held, by name, and the names in order; or nil. A name without its hash holds nothing.
local function read_circuits()
  local holds, names = {}, {}
  for _, name in ipairs(redis.call('SMEMBERS', '@routes')) do
    holds[name] = circuit_of(name)
    if holds[name] then names[#names + 1] = name end
  end
  table.sort(names)
  return #names > 0 and holds or nil, names
end

-- has_older_rest: whether the rest of an older notification of the backlog waits for this route. One that does not any
-- more, because it was cancelled or has expired, is forgotten.
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

-- probe_at: when this worker may let the next probe go. One that had no trouble itself need not wait long: if only the
-- others' network is broken, the route is up again at once. Whose probe was the last to come to nothing lets the others
-- go first, if there are any. What is further ahead than it is ever set is due: Redis's clock has been set back since.
local function probe_at(hold, worker, now)
  if hold.first == worker then return 0 end
  local others = not hold['w:' .. worker] and hold.others
  local at = tonumber(others or hold['until'])
  if hold.interval and at > now + 1.25 * hold.interval + LAST_PROBER_WAITS then return now end
  if not others and hold.last == worker and redis.call('SCARD', '@rq:workers') > 1 then at = at + LAST_PROBER_WAITS end
  return at
end
