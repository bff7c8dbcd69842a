--! exports read_claims claim_of write_claims release keep_claim
--! needs claim_key text
-- Order between workers: while heads of a backlog are in flight with one worker, the next go to that worker alone, or
-- two would race each other to the provider. What is in flight is always counted, also where a gap lets only one be:
-- rules change while sends are under way. The claim goes with the last that is settled, or with the lease of a worker
-- that died.
--   @claim:{user}:<category>  string '<how many> <until µs> <routes that some leave out, or -> <claimant>'
-- claimant: a worker that knows all that it has in flight. Where the answer to a lease was lost it does not, and goes
-- on as another claimant: so what was leased keeps its place before those behind it until its lease ends.
local read_ahead, claims = {}, {} -- key -> as it stands there; and as this call has it

-- read_claim: what such a string says; nil for none.
local function read_claim(claim)
  if not claim then return nil end
  local n, ends, routes, owner = string.match(claim, '^(%d+) (%d+) (%S+) (.*)$')
  return {n = tonumber(n), ends = ends, routes = routes, owner = owner}
end

-- ms: for how long, as text.
local function write_claim(key, n, ends, routes, owner, ms)
  redis.call('SET', key, text(n) .. ' ' .. ends .. ' ' .. routes .. ' ' .. owner, 'PX', ms)
end

local function ms_of(us) return text(math.ceil(us / 1000)) end

-- read_claims: those of these keys, for *claim_of*; in one command.
local function read_claims(keys)
  for i, said in ipairs(#keys > 0 and redis.call('MGET', unpack(keys)) or {}) do read_ahead[keys[i]] = said end
end

-- claim_of: {n: how many of the backlog are in flight with this claimant, elsewhere: whether some are with another,
-- left: the routes that some of them leave out, as they were shut, {route: true}, or nil, taken: 0}. Who takes more
-- counts them in `taken`, and adds to `left`.
local function claim_of(user, category, claimant, now)
  local key = claim_key(user, category)
  if claims[key] then return claims[key] end
  local said, claim = read_ahead[key], {n = 0, taken = 0}
  if said == nil then said = redis.call('GET', key) end
  local before = read_claim(said)
  if before and tonumber(before.ends) > now then
    claim.n, claim.elsewhere = before.n, before.owner ~= claimant
    if before.routes ~= '-' and not claim.elsewhere then
      claim.left = {}
      for route in string.gmatch(before.routes, '[^|]+') do claim.left[route] = true end
    end
  end
  claims[key] = claim
  return claim
end

local function routes_in(left)
  local names = {}
  for route in pairs(left) do names[#names + 1] = route end
  table.sort(names)
  return table.concat(names, '|')
end

-- write_claims: what was taken is in flight with this claimant now.
local function write_claims(claimant, lease, until_text)
  local ms = ms_of(lease)
  for key, claim in pairs(claims) do
    local routes = claim.taken > 0 and (claim.left and routes_in(claim.left) or '-')
    if routes then write_claim(key, claim.n + claim.taken, until_text, routes, claimant, ms) end
  end
end

-- release: so many have been settled, {key: n}. Nearly always they are the last.
local function release(released, now)
  local keys = {}
  for key in pairs(released) do keys[#keys + 1] = key end
  if #keys == 0 then return end
  read_claims(keys)
  redis.call('DEL', unpack(keys))
  for key, n in pairs(released) do
    local said = read_ahead[key]
    local held = said and said:sub(1, 2) ~= '1 ' and read_claim(said)
    local left = held and held.n > n and held.ends - now or 0
    read_ahead[key] = nil
    if left > 0 then write_claim(key, held.n - n, held.ends, held.routes, held.owner, ms_of(left)) end
  end
end

-- keep_claim: what this claimant has in flight lasts longer.
local function keep_claim(key, claimant, lease, until_text)
  local held = read_claim(redis.call('GET', key))
  if held and held.owner == claimant then write_claim(key, held.n, until_text, held.routes, claimant, ms_of(lease)) end
end
