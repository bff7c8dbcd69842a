--! exports text_of_counted counted_of cost_in date_sends
--! needs last_for number text
-- A permit is a number, and says nothing else: the fence of a lease, and a member of the sets of sends. What was
-- counted under it stands in the job's hash, for as long as that permit is the job's:
--   push_counted  JSON {permit, cost: as how many sends, devices: for how many devices they were counted too,
--                 nothing: true if no send was counted: the job had expired, or is dropped; read: true if none was and
--                 the job is only to be read}. Without it, one send was.

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

-- cost_in: as how many sends a permit stands in a set, where the job's hash is gone.
local function cost_in(sent, permit)
  local n = 1
  while redis.call('ZSCORE', sent, permit .. '#' .. n + 1) do n = n + 1 end
  return n
end

-- date_sends: what stands in a set under a permit is sent at µs `at`, in text; without it never. horizon: where it may
-- have been dropped since: for how many µs it matters from now on. Returns how many have gone.
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
