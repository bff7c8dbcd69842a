-- How long a limiter's key keeps its sends: as long as the longest of the rules that ask for it needs. The first member
-- of its set, the mark, says so, with the score -inf: '~', until when, the horizon (each 16 digits of µs), and the
-- longest of the shorter rules that have asked meanwhile. A c at the end: some of its sends may stand in counts, see
-- counts.lua. From `until` on nobody needs the horizon. The key itself goes then, so a send seldom has to renew it.

-- keep: what a send at µs `at`, by rules that keep it for `kept` µs, makes of a mark (nil: there is none). Returns the
-- horizon, until when, and a mark to put in the place of the old one, or nil where that may stay.
local function keep(mark, kept, now, at)
  local till, shorter, letter = at + kept, 0, ''
  if mark then
    local old, horizon = tonumber(string.sub(mark, 2, 17)), tonumber(string.sub(mark, 18, 33))
    if kept == horizon and old >= till then return horizon, old end
    shorter, letter = string.match(mark, '(%d+)(c?)$', 34)
    shorter = tonumber(shorter)
    if kept < horizon and old > now then
      if kept <= shorter and at <= now then return horizon, old end
      kept, shorter, till = horizon, math.max(shorter, kept), at > now and math.max(old, at + horizon) or old
      return kept, till, string.format('~%016.0f%016.0f%.0f%s', till, kept, shorter, letter)
    end
    if kept < horizon then kept, shorter = math.max(kept, shorter), 0 end
    till = math.max(old, at + kept)
  end
  -- An eighth more, so that the next sends find it long enough.
  till = till + math.floor(kept / 8)
  return kept, till, string.format('~%016.0f%016.0f%.0f%s', till, kept, shorter, letter)
end
