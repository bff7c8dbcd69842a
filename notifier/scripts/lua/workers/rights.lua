-- rights: refuses who may not run one of these commands, which a script would learn in its middle.
-- ARGV the names of the commands
-- returns nil, or the error of a client that is refused the first of them
local key, refused = '@full' -- never there: each command is tried with it
for _, name in ipairs(ARGV) do
  local words, why = {}
  repeat -- Redis looks how many arguments there are before it looks for the right
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
