-- limit: asks the limiter of a namespace for several keys, each by its own windows and gap. It is the short way for
-- most rates, without a closure or a command too many; *limit_any* knows all rates.
-- KEYS the sends of each key (see usage.lua)
-- ARGV 1 '' to take what may go now; else clock (0 is Redis's), µs that the caller is ready to wait (the permit is then
--        dated ahead, at the first moment the rules admit it), and t to take, l to look, a to add, which never refuses
--      2.. for each key: the end of a permit's id; cost, gap µs, µs that a send is kept, limit and interval µs of each
--        window. Numbers stand as 8 bytes each, so that none is read from text.
-- returns {now, for each key: µs until the permit counts or, if that is longer than the caller waits, until it would be
--          admitted; the deciding rule: 0 the gap, n the n-th window, -1 none; how many remain or -1; µs until there
--          are more or -1; the number of the window with the least room or -1}
--          It ends before the first key that has counts (see kept.lua): *limit_any* is to be asked from there on.
-- A number in a call is printed and parsed back, and so is a score, which takes longer than most commands: constants
-- stand as text, and when a send was is read from its name (see usage.lua).
--! include kept
local call, format, pack, unpack = redis.call, string.format, struct.pack, struct.unpack
local now, timeout, mode = 0, 0, 't'
if ARGV[1] ~= '' then now, timeout, mode = unpack('>I8I8c1', ARGV[1]) end
if now == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local reply, r = {now}, 1
for i = 1, #KEYS do
  local key, permit, plan = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
  local cost, gap, kept = unpack('>I8I8I8', plan)
  local found, count = call('ZRANGE', key, '0', '1'), 0
  local mark, first = found[1], found[2] and unpack('>I8', found[2])
  if mark then
    if string.byte(mark) == 99 then break end -- c
    count = call('ZCARD', key) - 1
  end

  local at, rule = 0, -1
  if count > 0 and mode ~= 'a' then
    if gap > 0 then at, rule = unpack('>I8', call('ZRANGE', key, '-1', '-1')[1]) + gap, 0 end
    for w = 25, #plan, 16 do
      -- `cost` more fit into (t - interval, t] once the (limit - cost + 1)-th latest send has left it.
      local limit, interval = unpack('>I8I8', plan, w)
      local nth = limit - cost + 1
      if nth < 1 then nth = 1 end
      if nth <= count then
        local leaves = nth == count and first or unpack('>I8', call('ZREVRANGE', key, nth - 1, nth - 1)[1])
        leaves = leaves + interval
        if leaves > at then at, rule = leaves, (w - 9) / 16 end
      end
    end
  end
  if at < now then at = now end

  local remaining, more, narrowest = -1, -1, -1
  if at - now <= timeout then
    if mode ~= 'l' and kept > 0 then
      local stamp, entry, horizon, till, new = format('%.0f', at), pack('>I8', at) .. permit, keep(mark, kept, now, at)
      if first and first <= now - horizon then
        count = count - call('ZREMRANGEBYSCORE', key, '0', format('%.0f', now - horizon))
        first = call('ZRANGE', key, '1', '1')[1]
        first = first and unpack('>I8', first)
      end
      call('ZADD', key, stamp, entry)
      for n = 2, cost do call('ZADD', key, stamp, entry .. '#' .. n) end
      if new then
        if mark then call('ZREM', key, mark) end
        call('ZADD', key, '-inf', new)
        call('PEXPIRE', key, format('%.0f', math.ceil((till - now) / 1000) + 1))
      end
      count = count + cost
      first = first and first < at and first or at
    end
    for w = 25, #plan, 16 do
      -- It counts no more than there are: often it need not be counted.
      local limit, interval = unpack('>I8I8', plan, w)
      local left, after, leaves = limit - count, at - interval, first
      if remaining < 0 or left < remaining then
        if first and first <= after then
          after = format('(%.0f', after)
          left = limit - call('ZCOUNT', key, after, '+inf')
          leaves = call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', '0', '1')[1]
          leaves = leaves and unpack('>I8', leaves)
        end
        if left < 0 then left = 0 end
        if remaining < 0 or left < remaining then
          remaining, narrowest = left, (w - 9) / 16
          more = math.max(0, (leaves and leaves + interval or at) - now)
        end
      end
    end
  end
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5] = at - now, rule, remaining, more, narrowest
  r = r + 5
end
return reply
