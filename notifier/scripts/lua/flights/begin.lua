-- begin: notes that the caller sends a suspect now: a job that two workers had in flight when they died.
-- ARGV 1 job id  2 permit
-- returns 1, or 0 if the caller has lost the lease and must not send the job
--! first_write
--! needs job_key
local key = job_key(ARGV[1])
if redis.call('HGET', key, 'push_permit') ~= ARGV[2] then return 0 end
redis.call('HSET', key, 'push_begun', ARGV[2])
return 1
