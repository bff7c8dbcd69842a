-- limit_undo: takes back permits of a key in a namespace, or forgets the key.
-- ARGV 1 namespace  2 key  3 '' to forget it, or a send (see usage.lua)  4 its cost
-- returns how many sends were taken back
--! include clock counts usage
local sent = keys_key(ARGV[1], ARGV[2])
if ARGV[3] == '' then
  local forgotten = redis.call('ZCOUNT', sent, 0, '+inf') + counted(sent) -- without the mark, see kept.lua
  redis.call('DEL', sent, beside(sent, '@counts'), beside(sent, '@burst'), use_key(ARGV[1], ARGV[2]))
  for _, by in ipairs({'last', 'total', 'held'}) do redis.call('ZREM', rank_key(ARGV[1], by), ARGV[2]) end
  return forgotten
end
local found = redis.call('ZREM', sent, ARGV[3])
for n = 2, tonumber(ARGV[4]) do found = found + redis.call('ZREM', sent, ARGV[3] .. '#' .. n) end
return found
