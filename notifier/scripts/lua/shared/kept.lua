-- How long a limiter's key keeps its sends: as long as the longest of the rules that ask for it needs. The first member
-- of its set, the mark, says so, with the score -inf: a letter, and 8 bytes each for until when (µs), the horizon, and
-- the longest of the shorter rules that have asked meanwhile. The letter is c where some of its sends may stand in
-- counts, see counts.lua; else ~. From `until` on nobody needs the horizon. The key itself goes then, so a send seldom
-- has to renew it.

-- keep: what a send at µs `at`, by rules that keep it for `kept` µs, makes of a mark (nil: there is none). Returns the
-- horizon, until when, and a mark to put in the place of the old one, or nil where that may stay.
local function keep(mark, kept, now, at)
  local till, shorter, letter = at + kept, 0, '~'
  if mark then
    local old, horizon, least = struct.unpack('>I8I8I8', mark, 2)
    if kept == horizon and old >= till then return horizon, old end
    shorter, letter = least, string.sub(mark, 1, 1)
    if kept < horizon and old > now then
      if kept <= shorter and at <= now then return horizon, old end
      kept, shorter, till = horizon, math.max(shorter, kept), at > now and math.max(old, at + horizon) or old
      return kept, till, letter .. struct.pack('>I8I8I8', till, kept, shorter)
    end
    if kept < horizon then kept, shorter = math.max(kept, shorter), 0 end
    till = math.max(old, at + kept)
  end
  -- An eighth more, so that the next sends find it long enough.
  till = till + math.floor(kept / 8)
  return kept, till, letter .. struct.pack('>I8I8I8', till, kept, shorter)
end
