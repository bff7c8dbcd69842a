--! exports read_claims claim_of write_claims release keep_claim
--! needs claim_key text
-- A claim keeps the order between workers: while a worker has jobs of a backlog in flight, only this worker gets the
-- next ones. Two workers would race each other to the provider. Every job in flight is counted, also where a gap allows
-- only one, because rules may change during a send. The claim ends when its last job is settled, or when the lease of a
-- dead worker ends.
--   @claim:{user}:<category>  string '<jobs> <until µs> <routes that some of them leave out, or -> <claimant>'
-- claimant: a worker that knows all jobs that it has in flight. A worker that has lost the reply to a pull does not
-- know them, and goes on as another claimant: no later job overtakes the unknown ones before their lease ends.
local read_ahead, claims = {}, {} -- key -> its string in Redis; and key -> the claim as this call changes it

-- read_claim: parses the string of a claim; nil without one.
local function read_claim(claim)
  if not claim then return nil end
  local n, ends, routes, owner = string.match(claim, '^(%d+) (%d+) (%S+) (.*)$')
  return {n = tonumber(n), ends = ends, routes = routes, owner = owner}
end

-- ms: how long the key lasts, as text.
local function write_claim(key, n, ends, routes, owner, ms)
  redis.call('SET', key, text(n) .. ' ' .. ends .. ' ' .. routes .. ' ' .. owner, 'PX', ms)
end

local function ms_of(us) return text(math.ceil(us / 1000)) end

-- read_claims: reads these keys by one command, for *claim_of*.
local function read_claims(keys)
  for i, said in ipairs(#keys > 0 and redis.call('MGET', unpack(keys)) or {}) do read_ahead[keys[i]] = said end
end

-- claim_of: {n: jobs of the backlog in flight, elsewhere: whether another claimant has them, left: {route: true}, the
-- shut routes that some of them leave out, or nil, taken: 0}. A caller that takes more jobs adds to `taken` and `left`.
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

-- write_claims: adds the jobs that this call took to the claimant's claims.
local function write_claims(claimant, lease, until_text)
  local ms = ms_of(lease)
  for key, claim in pairs(claims) do
    local routes = claim.taken > 0 and (claim.left and routes_in(claim.left) or '-')
    if routes then write_claim(key, claim.n + claim.taken, until_text, routes, claimant, ms) end
  end
end

-- release: takes settled jobs out of their claims, {key: n}. They are nearly always the last ones.
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

-- keep_claim: renews a claim if this claimant has it.
local function keep_claim(key, claimant, lease, until_text)
  local held = read_claim(redis.call('GET', key))
  if held and held.owner == claimant then write_claim(key, held.n, until_text, held.routes, claimant, ms_of(lease)) end
end
