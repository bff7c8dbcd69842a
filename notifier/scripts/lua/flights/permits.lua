--! exports text_of_counted counted_of cost_in date_sends
--! needs last_for number text
-- A permit is a number: the fence of a lease, and a member of the sorted sets of sends. The job's hash says what was
-- counted under its permit:
--   push_counted  JSON {permit, cost: how many sends, devices: how many devices they were counted for as well,
--                 nothing: true if no send was counted because the job had expired or is dropped, read: true if none
--                 was counted because the worker only reads the job}. Without the field, one send was counted.

local function text_of_counted(permit, cost, devices, nothing, read)
  return cjson.encode({permit = permit, cost = cost, devices = devices and #devices, nothing = nothing or nil,
    read = read})
end

local ONE = {cost = 1}
-- counted_of: {cost, devices, nothing} of a permit. said: push_counted, or false.
local function counted_of(permit, said)
  if said then
    local ok, counted = pcall(cjson.decode, said)
    if ok and type(counted) == 'table' and counted.permit == permit and number(counted.cost) then return counted end
  end
  return ONE
end

-- cost_in: how many sends a set has under a permit; for a job whose hash is gone.
local function cost_in(sent, permit)
  local n = 1
  while redis.call('ZSCORE', sent, permit .. '#' .. n + 1) do n = n + 1 end
  return n
end

-- date_sends: dates the sends of a permit in a set at µs `at`, as text, or removes them if `at` is nil. horizon: writes
-- them also if they were trimmed meanwhile, and keeps the set for so many µs. Returns how many were removed.
local function date_sends(sent, permit, cost, at, horizon)
  local gone = 0
  for n = 1, cost do
    local member = n == 1 and permit or permit .. '#' .. n
    if not at then gone = gone + redis.call('ZREM', sent, member)
    elseif horizon then redis.call('ZADD', sent, at, member)
    else redis.call('ZADD', sent, 'XX', at, member) end
  end
  if at and horizon then last_for(sent, text(math.ceil(horizon / 1000) + 1)) end
  return gone
end
