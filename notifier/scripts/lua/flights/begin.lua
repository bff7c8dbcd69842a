-- begin: notes that a suspect, a job with which two workers died, is being sent now, alone.
-- ARGV 1 job id  2 permit
-- returns 1, or 0 where the lease is no longer the caller's: it must not be sent then
--! first_write
--! needs job_key
local key = job_key(ARGV[1])
if redis.call('HGET', key, 'push_permit') ~= ARGV[2] then return 0 end
redis.call('HSET', key, 'push_begun', ARGV[2])
return 1
