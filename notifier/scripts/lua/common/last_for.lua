--! exports last_for
-- last_for: keeps a key for at least `ms`. A longer life stays: another rule, or an entry dated later, may need it.
local function last_for(key, ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
