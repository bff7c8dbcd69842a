--! exports claim_of claim release keep_claim
-- Order between workers: while heads of a backlog are in flight with one worker, the next go to that worker alone, or
-- two would race each other to the provider. What is in flight is always counted, also where a gap lets only one be:
-- rules change while sends are under way. The claim goes with the last that is settled, or with the lease of a worker
-- that died.
--   @claim:{user}:<category>  string '<how many> <until µs> <routes that some leave out, or -> <worker>'

-- read_claim: what such a string says; nil for none. The commands are spelled out by the callers: the rules of access
-- are read from them, see access.py.
local function read_claim(claim)
  if not claim then return nil end
  local n, ends, routes, owner = string.match(claim, '^(%d+) (%d+) (%S+) (.*)$')
  return {n = tonumber(n), ends = ends, routes = routes, owner = owner}
end

local function text_of_claim(n, ends, routes, owner) return text(n) .. ' ' .. ends .. ' ' .. routes .. ' ' .. owner end

-- claim_of: how many of the backlog are in flight with this worker; whether some are with another; and the routes that
-- some of them leave out, as they were shut, {route: true}, or nil.
local function claim_of(user, category, worker, now)
  local claim = read_claim(redis.call('GET', claim_key(user, category)))
  if not claim or tonumber(claim.ends) <= now then return 0, false end
  if claim.owner ~= worker then return 0, true end
  if claim.routes == '-' then return claim.n, false end
  local left = {}
  for route in string.gmatch(claim.routes, '[^|]+') do left[route] = true end
  return claim.n, false, left
end

-- claim: n of the backlog are in flight with this worker now. left: see *claim_of*.
local function claim(user, category, worker, n, left, lease, until_text)
  local routes = {}
  for route in pairs(left or {}) do routes[#routes + 1] = route end
  table.sort(routes)
  local value = text_of_claim(n, until_text, #routes > 0 and table.concat(routes, '|') or '-', worker)
  redis.call('SET', claim_key(user, category), value, 'PX', text(math.ceil(lease / 1000)))
end

-- release: one of the backlog has been settled.
local function release(user, category, now)
  local key = claim_key(user, category)
  local held = read_claim(redis.call('GETDEL', key)) -- nearly always it is the last
  local left = held and held.n > 1 and held.ends - now or 0
  if left <= 0 then return end
  local value = text_of_claim(held.n - 1, held.ends, held.routes, held.owner)
  redis.call('SET', key, value, 'PX', text(math.ceil(left / 1000)))
end

-- keep_claim: what this worker has in flight lasts longer.
local function keep_claim(key, worker, lease, until_text)
  local held = read_claim(redis.call('GET', key))
  if not held or held.owner ~= worker then return end
  local value = text_of_claim(held.n, until_text, held.routes, worker)
  redis.call('SET', key, value, 'PX', text(math.ceil(lease / 1000)))
end
