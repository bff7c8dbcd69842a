-- A Redis over maxmemory refuses a script's first write if that may take memory, and lets a script that has written
-- come to its end. What frees memory in the end must go on then, or a full Redis would stay full: where this is
-- included the first write is one that takes none.
redis.call('DEL', '@full')
