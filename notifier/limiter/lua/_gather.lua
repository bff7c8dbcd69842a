-- gather: keeps a write for `write_gathered`, which makes one call of all those of a key: what a call costs is for the
-- most part the call itself. For what the script does not read again; a key has one command in a script.
local MOST_GATHERED = 1000
local gathered = {}

local function write_of(key, write)
  redis.call(write.command, key, unpack(write))
  gathered[key] = nil
end

local function gather(command, key, first, second)
  local write = gathered[key]
  if not write then
    write = {command = command, n = 0}
    gathered[key] = write
  end
  local n = write.n
  write[n + 1], write[n + 2] = first, second
  write.n = n + (second and 2 or 1)
  if write.n >= MOST_GATHERED then write_of(key, write) end
end

local function write_gathered()
  for key, write in pairs(gathered) do write_of(key, write) end
end
