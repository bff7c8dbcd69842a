-- limit_used: as *limit*, and counts the usage.
-- ARGV as of *limit*, then the namespace, and for how many µs usage is kept
-- returns as *limit*
--! needs ask_keys keys_key note_usage
local call, pack, parse, sub, floor = redis.call, struct.pack, struct.unpack, string.sub, math.floor
local FIRST = #KEYS - (#ARGV - 3) / 2 + 1
local function least() return math.ceil((ARGV[#ARGV] + 1200000000) / 1000) end -- ms until all uses are settled
--! include used_now
--! include limit_short
if answer and not is_first then return answer end
--! pieces
local namespace, keep = ARGV[#ARGV - 1], tonumber(ARGV[#ARGV])
local begins = #keys_key(namespace, '') -- where the key begins in its name
local function note(key, plan, admitted)
  local cost, _, kept = parse('>I8I8I8', plan)
  if u == nil then u = call('HGET', key, 'u') end
  note_usage(namespace, key, sub(key, begins, -2), u, admitted and cost or nil, now, keep,
    not answer and kept > 0 and used_now)
  u = nil
end
if answer then note(key, ARGV[3], admitted) return answer end
return ask_keys(FIRST, now, timeout, mode, read, least(), note)
