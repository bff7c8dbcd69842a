--! exports claim_of claim release keep_claim
--! needs claim_key text
-- Order between workers: while heads of a backlog are in flight with one worker, the next go to that worker alone, or
-- two would race each other to the provider. What is in flight is always counted, also where a gap lets only one be:
-- rules change while sends are under way. The claim goes with the last that is settled, or with the lease of a worker
-- that died.
--   @claim:{user}:<category>  string '<how many> <until µs> <routes that some leave out, or -> <claimant>'
-- claimant: a worker that knows all that it has in flight. Where the answer to a lease was lost it does not, and goes
-- on as another claimant: so what was leased keeps its place before those behind it until its lease ends.

-- read_claim: what such a string says; nil for none.
local function read_claim(claim)
  if not claim then return nil end
  local n, ends, routes, owner = string.match(claim, '^(%d+) (%d+) (%S+) (.*)$')
  return {n = tonumber(n), ends = ends, routes = routes, owner = owner}
end

local function write_claim(key, n, ends, routes, owner, us)
  local value = text(n) .. ' ' .. ends .. ' ' .. routes .. ' ' .. owner
  redis.call('SET', key, value, 'PX', text(math.ceil(us / 1000)))
end

-- claim_of: how many of the backlog are in flight with this claimant; whether some are with another; and the routes
-- that some of them leave out, as they were shut, {route: true}, or nil.
local function claim_of(user, category, claimant, now)
  local claim = read_claim(redis.call('GET', claim_key(user, category)))
  if not claim or tonumber(claim.ends) <= now then return 0, false end
  if claim.owner ~= claimant then return 0, true end
  if claim.routes == '-' then return claim.n, false end
  local left = {}
  for route in string.gmatch(claim.routes, '[^|]+') do left[route] = true end
  return claim.n, false, left
end

-- claim: n of the backlog are in flight with this claimant now. left: see *claim_of*.
local function claim(user, category, claimant, n, left, lease, until_text)
  local routes = '-'
  if left and next(left) then
    local names = {}
    for route in pairs(left) do names[#names + 1] = route end
    table.sort(names)
    routes = table.concat(names, '|')
  end
  write_claim(claim_key(user, category), n, until_text, routes, claimant, lease)
end

-- release: n of the backlog have been settled.
local function release(key, n, now)
  local held = read_claim(redis.call('GETDEL', key)) -- nearly always they are the last
  local left = held and held.n > n and held.ends - now or 0
  if left > 0 then write_claim(key, held.n - n, held.ends, held.routes, held.owner, left) end
end

-- keep_claim: what this claimant has in flight lasts longer.
local function keep_claim(key, claimant, lease, until_text)
  local held = read_claim(redis.call('GET', key))
  if held and held.owner == claimant then write_claim(key, held.n, until_text, held.routes, claimant, lease) end
end
