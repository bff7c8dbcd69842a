-- write: runs one command that writes, also where Redis is full.
-- KEYS the last is the command's key
-- ARGV the command, and its arguments behind the key
-- returns the command's reply
--! first_write
return redis.call(ARGV[1], KEYS[#KEYS], unpack(ARGV, 2))
