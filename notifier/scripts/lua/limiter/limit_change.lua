-- limit_change: changes the sends of a limiter's key, or blocks it.
-- ARGV 1 clock  2 namespace  3 key
--      4 'cost': 5 µs of a permit  6 the end of its id  7 its new cost; 0 gives it back
--      4 'block': 5 for how many µs; 0 ends the block
--      4 'reward': 5 the cost to subtract, from the latest sends first
--      4 'forget'
-- returns cost: by how much the cost fell, negative if it rose, or nil if the permit is not there; block: 0;
--         reward, forget: the cost that no longer counts
--! needs keys_key marks MINUTE now_us older_sends rank_key read_sends settle_usage text use_key weight_after
--! needs write_sends
local now, namespace, key, verb = now_us(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local s = read_sends(keys_key(namespace, key))
local change = {}

local function set_cost(at, id, cost)
  local by = at > now - s.horizon and older_sends.change(s, at, id, cost)
  if not by then return nil end
  marks.correct_bursts(s, at, by, now)
  if cost == 0 and at > now then marks.free_place(s, at) end
  write_sends(s)
  return -by
end

function change.cost() return set_cost(tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])) end

function change.block()
  local span = tonumber(ARGV[5])
  marks.block_key(s, span > 0 and now + span or 0)
  if now + span > s.till then
    s.till = now + span
    s.lasts, s.least = s.till + s.shorter - now, redis.call('PTTL', s.key)
  end
  write_sends(s)
  return 0
end

function change.reward()
  local function corrected(at, by) marks.correct_bursts(s, at, by, now) end
  local given = older_sends.reward(s, tonumber(ARGV[5]), now - s.horizon, corrected)
  if given > 0 then write_sends(s) end
  return given
end

function change.forget()
  local forgotten = weight_after(s, now - s.horizon)
  settle_usage(namespace, key, now) -- the series of all keys keep the uses
  redis.call('DEL', s.key, use_key(namespace, key))
  local ranks = {'last', 'total', 'held'}
  for i = 0, 6 do ranks[4 + i] = text(math.floor(now / (10 * MINUTE)) - i) end
  for _, by in ipairs(namespace ~= '' and ranks or {}) do
    redis.call('ZREM', rank_key(namespace, by), key)
  end
  return forgotten
end

return change[verb]()
