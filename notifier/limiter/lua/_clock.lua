-- now_us: µs since the epoch on Redis's own clock. A test passes a clock of its own as `given`; all else passes ''.
local function now_us(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
