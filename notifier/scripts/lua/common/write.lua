-- write: one command that writes, also where Redis is full.
-- KEYS the last is the command's
-- ARGV the command, and what stands behind its key
-- returns what the command does
--! first_write
return redis.call(ARGV[1], KEYS[#KEYS], unpack(ARGV, 2))
