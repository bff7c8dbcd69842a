--! exports text number seconds now_us
local format, floor = string.format, math.floor
local WHOLE = format('%d', 2 ^ 40) == '1099511627776' and '%d' or '%.0f' -- %d costs a sixth; on 32 bits it is too short
-- text: a whole number as Redis reads it. Redis itself prints a Lua number by %.17g and parses it back, at every
-- call; what goes into many calls is written once.
local function text(number) return format(WHOLE, number) end

-- number: the whole number in a field of a hash, or nil: anybody may have written there, and anything.
local function number(value)
  local n = tonumber(value)
  return n and n >= -9007199254740992 and n <= 9007199254740992 and math.floor(n) or nil -- NaN is not either
end

local function seconds(us) return format('%d.%06d', floor(us / 1000000), us % 1000000) end -- as RQ's registries count

-- now_us: µs since the epoch on Redis's own clock. A test passes a clock of its own as `given`; all else passes ''.
local function now_us(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
