--! included
-- The head of *limit* and *limit_used*: `now`, and the short way, for what most calls are: one key, by windows alone,
-- which is new, or all of whose sends are in all of the windows. To make the functions of the long way takes as long as
-- this. read: what stands in the key, where it was read already; false is nothing.
local now, timeout, mode = 0, 0, 't'
if ARGV[1] ~= '' then now, timeout, mode = parse('>I8I8c1', ARGV[1]) end
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local key, read, u, is_short = KEYS[FIRST], nil, nil, mode == 't' and timeout == 0 and #KEYS == FIRST
if is_short and used_now then
  local found = call('HMGET', key, 'h', 'u')
  read, u = found[1], found[2]
  local known, tens = 0, nil
  if u then known, tens = parse('>I7I4', u) end
  is_short = known > 0 and tens == floor(now / 600000000)
elseif is_short then
  read = call('HGET', key, 'h')
end
if is_short then
  local plan = ARGV[3]
  local cost, gap, kept, capacity, _, windows = parse('>I8I8I8I8I8I8', plan)
  local size, till, horizon, base, older, first, marks = 0, 0, 0, 0, 0, 0, 0
  if read then
    size = #read - 44
    till, horizon, _, base, older, first, marks = parse('>I7I7I7I7I7I7I2', read, size + 1)
  end
  if gap + capacity + marks == 0 and windows > 0 and #plan == 48 + 16 * windows
    and (size > 0 or not read) then
    local last, sum = 0, 0
    if read then
      last, _, sum = parse('>I7c2I7', read, size - 15)
      if older == 0 then first = parse('>I7', read) end
    else
      first, till = now, now + kept + floor(kept / 8) -- as *keep* of limit_rules.lua
    end
    local total, remaining, narrowest, more, at, rule = sum - base + older, -1, -1, -1, 0, -1
    for w = 1, windows do
      local limit, interval = parse('>I8I8', plan, 16 * w + 33)
      local left, leaves = limit - total, first + interval
      if left < cost and (left < cost - 1 or cost > limit) or leaves <= now then at = nil break end
      if left < cost and leaves > at then at, rule = leaves, w end
      if remaining < 0 or left < remaining then remaining, narrowest, more = left, w, leaves - now end
    end
    if at and at > 0 then
      if u then call('HSET', key, 'u', used_now(u, now)) end
      return {now, at - now, rule, -1, -1, -1}
    end
    if at and size < 656 and last <= now
      and (not read or kept == horizon and till >= now + kept and first > now - kept) then
      local send = pack('>I7c2I7', now, ARGV[2], sum + cost)
      local head = read and sub(read, 1, size) .. send .. sub(read, size + 1)
        or send .. pack('>I7I7I7I7I7I7I2', till, kept, 0, 0, 0, now, 0)
      if u then call('HSET', key, 'h', head, 'u', used_now(u, now, cost)) else call('HSET', key, 'h', head) end
      if not read then call('PEXPIRE', key, string.format('%.0f', floor((till - now) / 1000) + 2)) end
      return {now, 0, -1, remaining - cost, more, narrowest}
    end
  end
end
