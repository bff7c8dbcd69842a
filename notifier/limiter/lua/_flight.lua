-- Order between workers: while heads of a line are in flight with one worker, the next go to that worker alone, or two
-- would race each other to the provider. Where a gap is in force one is in flight anyway, and nothing is kept here.
-- The key goes with the last that is settled, or with the lease of a worker that died.
local function may_race(user_policy, policy, bypass)
  return bypass or (user_policy[1] == 0 and policy[1] == 0)
end

local function flies_elsewhere(user, category, worker, now)
  local flight = redis.call('HMGET', flight_key(user, category), 'o', 'u')
  return flight[1] and flight[1] ~= worker and tonumber(flight[2]) > now
end

local function take_off(user, category, worker, n, lease, until_text)
  local key = flight_key(user, category)
  redis.call('HSET', key, 'o', worker, 'u', until_text)
  redis.call('HINCRBY', key, 'n', n)
  redis.call('PEXPIRE', key, text(math.ceil(lease / 1000)))
end

local function land(user, category)
  local key = flight_key(user, category)
  if redis.call('HINCRBY', key, 'n', -1) <= 0 then redis.call('DEL', key) end
end
