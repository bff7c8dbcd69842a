--! exports add_to_minute
--! needs text
-- The counters of each minute: @minute:<minutes since 1970>, a hash field -> number, kept for three days.
--   a|<category>                     accepted
--   o|<outcome>|<category>|<route>   settled; routes of several devices with + between, '' if no worker sent it
--   e|poison                         set aside, because workers died on it
--   late|<category>|<n>, answer|<route>|<n>   histograms, see workers/sending/numbers.py; <n> is 's' for the sum in us

-- add_to_minute: adds {field: number}, by two commands for any number of fields; a third command begins a new minute.
local function add_to_minute(now, adds)
  local fields, values = {}, {}
  for field in pairs(adds) do fields[#fields + 1] = field end
  if #fields == 0 then return end
  local key, is_new = '@minute:' .. text(math.floor(now / 60000000)), true
  local before = redis.call('HMGET', key, unpack(fields))
  for i, field in ipairs(fields) do
    if before[i] then is_new = false end
    values[2 * i - 1], values[2 * i] = field, text((tonumber(before[i] or 0) or 0) + adds[field])
  end
  redis.call('HSET', key, unpack(values))
  if is_new then redis.call('EXPIRE', key, 259200) end
end
