--! exports gather write_gathered
-- gather: postpones a write until `write_gathered`, which writes all members of a key by one call, as most of a call's
-- cost is the call itself. Only for what the script does not read again. command: 'ZADD' or 'ZREM'.
local MAX_GATHERED = 1000
local gathered = {ZADD = {}, ZREM = {}}

local function write_of(command, key, write)
  redis.call(command, key, unpack(write))
  gathered[command][key] = nil
end

local function gather(command, key, first, second)
  local writes = gathered[command]
  local write = writes[key]
  if not write then
    writes[key] = {first, second}
    return
  end
  local n = #write
  write[n + 1], write[n + 2] = first, second
  if n >= MAX_GATHERED then write_of(command, key, write) end
end

local function write_gathered()
  for command, writes in pairs(gathered) do
    for key, write in pairs(writes) do write_of(command, key, write) end
  end
end
