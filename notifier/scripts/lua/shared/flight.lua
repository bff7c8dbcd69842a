-- Order between workers: while heads of a line are in flight with one worker, the next go to that worker alone, or two
-- would race each other to the provider. What is in flight is always counted, also where a gap lets only one be: rules
-- change while sends are under way. The key goes with the last that is settled, or with the lease of a worker that
-- died.

-- flight_of: how many of the line are in flight with this worker; whether some are with another; and the routes that
-- some of them leave out, as they were shut, {route: true}, or nil.
local function flight_of(user, category, worker, now)
  local flight = redis.call('HMGET', flight_key(user, category), 'o', 'u', 'n', 'left')
  if not flight[1] or tonumber(flight[2]) <= now then return 0, false end
  if flight[1] ~= worker then return 0, true end
  if not flight[4] then return tonumber(flight[3]), false end
  local left = {}
  for route in string.gmatch(flight[4], '%S+') do left[route] = true end
  return tonumber(flight[3]), false, left
end

-- take_off: n of the line are in flight with this worker now. left: see *flight_of*.
local function take_off(user, category, worker, n, left, lease, until_text)
  local key = flight_key(user, category)
  redis.call('HSET', key, 'o', worker, 'u', until_text, 'n', n)
  if left then
    local routes = {}
    for route in pairs(left) do routes[#routes + 1] = route end
    table.sort(routes)
    redis.call('HSET', key, 'left', table.concat(routes, ' '))
  end
  redis.call('PEXPIRE', key, text(math.ceil(lease / 1000)))
end

local function land(user, category)
  local key = flight_key(user, category)
  if redis.call('HINCRBY', key, 'n', '-1') <= 0 then redis.call('DEL', key) end
end

-- keep_claim: what this worker has in flight lasts longer.
local function keep_claim(key, worker, lease, until_text)
  if redis.call('HGET', key, 'o') ~= worker then return end
  redis.call('HSET', key, 'u', until_text)
  redis.call('PEXPIRE', key, text(math.ceil(lease / 1000)))
end
