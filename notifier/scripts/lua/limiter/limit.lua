-- limit: asks the limiter of a namespace for several keys, each by its own rules. It touches no other keys.
-- KEYS the sends of each key (see sends.lua)
-- ARGV 1 '' to take permits that count now; else packed: clock (0 is Redis's), 8 bytes; the µs that the caller will
--        wait, 8 (a permit is then dated ahead, to when the rules admit it); t to take, l to look, a to add whatever
--        the rules say, e to take every permit or, if one is refused, none
--      2.. for each key: the end of a permit's id (2 bytes), and a plan (see limit_rules.lua)
-- returns packed, as a string costs less than a list: now, 8 bytes; for each key: µs until the permit counts or, if
--          that is longer than the caller waits, until it would be admitted, 8; the deciding rule, 2; how many remain
--          or -1, 8; µs until there are more or -1, 8; the number of the window with the least room or -1, 2
--          It ends before a key whose calendar dates do not reach a moment: that moment is the last number then, 8.
--! needs ask_keys
local call, pack, parse, sub, floor = redis.call, struct.pack, struct.unpack, string.sub, math.floor
local FIRST, used_now, least = 1, nil, nil
--! include limit_short
if answer then return answer end
--! pieces
return ask_keys(FIRST, now, timeout, mode, read)
