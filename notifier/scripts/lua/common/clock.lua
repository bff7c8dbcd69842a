--! exports text number seconds now_us
local format, floor = string.format, math.floor
-- '%d' costs a sixth of '%.0f', but overflows where a long has 32 bits.
local WHOLE = format('%d', 2 ^ 40) == '1099511627776' and '%d' or '%.0f'
-- text: a whole number as Redis reads it. Redis prints a Lua number argument by %.17g and parses it again at each call,
-- so a script converts a number once that it passes to several calls.
local function text(number) return format(WHOLE, number) end

-- number: the whole number in a field of a hash, or nil. The field may hold anything: other programs write there too.
local function number(value)
  local n = tonumber(value)
  return n and n >= -9007199254740992 and n <= 9007199254740992 and math.floor(n) or nil -- NaN is not either
end

local function seconds(us) return format('%d.%06d', floor(us / 1000000), us % 1000000) end -- as RQ's registries count

-- now_us: µs since the epoch on Redis's own clock. given: '', or the time that a test sets.
local function now_us(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
