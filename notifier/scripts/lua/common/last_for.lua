--! exports last_for
-- last_for: keeps a key for at least `ms`. A longer life stays: another rule, or an entry dated later, may need it.
-- longer: for how many ms it is kept if it does not last so long, or nil.
local function last_for(key, ms, longer)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, longer or ms) end
end
