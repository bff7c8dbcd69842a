--! included
-- used_now: the field u of a key, with one use more: of `cost`, or (nil) held. It is the µs for which use is known (0
-- where all is settled), the ten minutes, the first use in them, the last one, when the key was asked for, and how
-- often it was held; then of each minute that had some its number and how many. 7 bytes each, 4 for minutes.
-- u: false where the use is settled at once.
local function used_now(u, now, cost)
  if not u then return pack('>I7I4I7I7I7I7', 0, floor(now / 600000000), 0, 0, 0, 0) end
  local keep, tens, first, last, asked, held = parse('>I7I4I7I7I7I7', u)
  if not cost then return pack('>I7I4I7I7I7I7', keep, tens, first, last, now, held + 1) .. sub(u, 40) end
  local size, minute = #u, floor(now / 60000000)
  if size > 39 then
    local latest, count = parse('>I4I7', u, size - 10)
    if latest == minute then size, cost = size - 11, count + cost end
  end
  if first == 0 then first = now end
  return pack('>I7I4I7I7I7I7', keep, tens, first, now, now, held) .. sub(u, 40, size) .. pack('>I4I7', minute, cost)
end
