-- rights: tells before the work whether the client may run these commands; a script would fail in its middle.
-- ARGV the names of the commands
-- returns nil, or the error for the first command that Redis refuses
local key, refused = '@full' -- a key that never exists, with which each command is tried
for _, name in ipairs(ARGV) do
  local words, why = {}
  repeat -- Redis checks the number of arguments before it checks the right
    local reply = redis.pcall(name, unpack(words))
    why = type(reply) == 'table' and reply.err or ''
    words[#words + 1] = key
  until #words > 5 or not why:find('Wrong number of args', 1, true)
  if why:find("can't run", 1, true) or why:find('permissions to run', 1, true) then
    refused = refused or "NOPERM no permissions to run the '" .. name .. "' command"
  elseif why:find('Unknown', 1, true) then
    refused = refused or "ERR unknown command '" .. name .. "'"
  end
end
redis.pcall('DEL', key)
return refused and redis.error_reply(refused)
