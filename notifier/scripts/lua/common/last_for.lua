--! exports last_for
-- last_for: a key is to be there for so many ms at least. What is there for longer stays so: other rules, or what is
-- dated further ahead, may need it.
local function last_for(key, ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
