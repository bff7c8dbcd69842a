--! included
-- used_now: field u of a key after one more use: a send of `cost`, or a hold if cost is nil. The field is: how many µs
-- usage is kept (0 if all is settled), the ten minutes, the first use in them, the last use, the last request, and how
-- often the key was held; then, for each minute with sends, its number and their cost. 7 bytes each, 4 for minutes.
-- u: false if the use is settled at once.
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
