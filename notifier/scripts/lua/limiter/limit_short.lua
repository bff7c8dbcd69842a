--! included
-- The head of *limit* and *limit_used*: it sets `now`, and answers most calls by a short way: one key, no calendar
-- window, and every send that counts is inside every window, and in the mark of the burst. To make the functions of the
-- long way takes longer than this. answer: the reply, if the short way was enough. read: field h of the key, if it has
-- been read; false if there is none. is_first: the first use in its ten minutes, which is to be settled, see usage.lua.
local now, timeout, mode = 0, 0, 't'
if ARGV[1] ~= '' then now, timeout, mode = parse('>I8I8c1', ARGV[1]) end
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local key, answer, read, u, is_first = KEYS[FIRST], nil, nil, nil, false
local is_short, admitted = mode == 't' and timeout == 0 and #KEYS == FIRST, false
if is_short and used_now then
  local found = call('HMGET', key, 'h', 'u')
  read, u = found[1], found[2]
  local known, of, tens = 0, 0, floor(now / 600000000)
  if u then known, of = parse('>I7I4', u) end
  is_short, is_first = (known > 0) == (of == tens), known == 0
elseif is_short then
  read = call('HGET', key, 'h')
end
if is_short then
  local plan = ARGV[3]
  local cost, gap, kept, capacity, every, windows = parse('>I8I8I8I8I8I8', plan)
  local till, horizon, shorter, base, older, first, marks = 0, kept, 0, 0, 0, now, capacity > 0 and 1 or 0
  local size, lapsed, last, sum, rule, _ = 0, 0, 0, 0, -1, nil
  local mark, full, upto = '', 0, now -- of the burst, see marks.lua
  if marks > 0 then mark = sub(plan, 25, 40) end
  local at = kept > 0 and #plan == 48 + 16 * windows and 0 -- when the plan admits its cost; false: take the long way
  if read then
    till, horizon, shorter, base, older, first, size = parse('>I7I7I7I7I7I7I2', read, #read - 43)
    if size ~= marks then at = false end
    size = #read - 44 - 32 * size
    if size == 0 or marks > 0 and sub(read, size + 1, size + 16) ~= mark then at = false end
  end
  if at and read then
    if marks > 0 then full, upto = parse('>i8i8', read, size + 17) end
    last, _, sum = parse('>I7c2I7', read, size - 15)
    if gap > 0 then at, rule = last + gap, 0 end
    if older == 0 then
      first = parse('>I7', read)
      if kept == horizon and last <= now - kept then
        lapsed, base, sum, first = size, 0, 0, now
      elseif kept == horizon then
        while first <= now - kept do
          _, base, first = parse('>c2I7I7', read, lapsed + 8)
          lapsed = lapsed + 16
        end
      end
    end
  end
  local total, remaining, narrowest, more = sum - base + older, -1, -1, -1
  for w = 1, at and windows or 0 do
    local limit, interval = parse('>I8I8', plan, 16 * w + 33)
    local left, leaves = limit - total, first + interval
    if left < cost and (left < cost - 1 or cost > limit) or leaves <= now then at = false break end
    if left < cost and leaves > at then at, rule = leaves, w end
    if remaining < 0 or left < remaining or left == remaining and leaves - now > more then
      remaining, narrowest, more = left, w, leaves - now
    end
  end
  if at and marks > 0 then
    local opens = full - math.max(0, capacity - cost) * every
    if upto > now or last > upto then at = false elseif opens > at then at, rule = opens, -2 end
  end
  if at and at > now and at > till and kept >= horizon then at = false end -- the sends must be kept for longer
  if at and at > now then
    answer = pack('>i8i8i2i8i8i2', now, at - now, rule, -1, -1, -1)
    if u or is_first then call('HSET', key, 'u', used_now(not is_first and u, now)) end
  elseif at and size - lapsed < 656 and sum <= 4503599627370496 -- see LARGE of sends.lua
    and last <= now and kept == horizon and first > now - kept then
    remaining = remaining > 0 and remaining - cost or -1
    answer, admitted = pack('>i8i8i2i8i8i2', now, 0, -1, remaining, more, narrowest), true
    local is_renewed = till < now + kept
    if is_renewed then till = now + kept + floor(kept / 8) end -- as *keep* of limit_rules.lua
    local before, rest = read and sub(read, lapsed + 1, size) or ''
    if is_renewed or lapsed > 0 then
      rest = pack('>I7I7I7I7I7I7I2', till, kept, shorter, base, older, first, marks)
    else
      rest = sub(read, -44)
    end
    if marks > 0 then
      full = math.min(math.max(full, now) + cost * every, now + capacity * every)
      mark = mark .. pack('>i8i8', full, now)
    end
    local head = before .. pack('>I7c2I7', now, ARGV[2], sum + cost) .. mark .. rest
    if used_now then
      call('HSET', key, 'h', head, 'u', used_now(not is_first and u, now, cost))
    else
      call('HSET', key, 'h', head)
    end
    if is_renewed then
      local lasts = math.max(floor((till + shorter - now) / 1000) + 2, used_now and least() or 0)
      call('PEXPIRE', key, string.format('%.0f', lasts))
    end
  end
end
