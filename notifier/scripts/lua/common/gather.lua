--! exports gather write_gathered
-- gather: postpones a write until `write_gathered`, which writes all members of a key by one call, as most of a call's
-- cost is the call itself. Only for what the script does not read again. command: 'ZADD' or 'ZREM'. A script takes at
-- most 1000 jobs, and `unpack` returns at most 8000 values.
local gathered = {ZADD = {}, ZREM = {}}

local function gather(command, key, first, second)
  local writes = gathered[command]
  local write = writes[key]
  if not write then
    writes[key] = {first, second}
    return
  end
  local n = #write
  write[n + 1], write[n + 2] = first, second
end

local function write_gathered()
  for command, writes in pairs(gathered) do
    for key, write in pairs(writes) do redis.call(command, key, unpack(write)) end
    gathered[command] = {}
  end
end
