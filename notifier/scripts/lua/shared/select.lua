--! exports select_user sort_lines peek_line pass_on MAX_RANK
-- Select: whom *admit* looks at, and which heads may go next. A user is a table
--   name, sent (key), policy, index (of the policy, in the rules)
--   lines    in the order in which their heads are tried, see *sort_lines*; several: whether they stand in many lanes
--   turn     #turn; closed: which lines have orphans, see orphans.lua; whole: where this is a part, see many.lua
--   next     {cost: {µs at which the user's own rules let one go, rule}}; flying: {category: {n, left}} of the claims;
--   sends
-- and a line of it
--   category, lane, rank, key; policy, bypass, drops, cost: the rules of its category
--   head, order, more: the job that is next, its place, whether another stands behind it
--   flying, elsewhere, left: of its claim, see claims.lua; elsewhere is also what has an orphan
--   at, own, least, by: when the head may go, and what decides it, see opens.lua
--   unread, parked, refused: why not, see decide.lua
local MAX_RANK = 99 -- of a lane that the caller does not serve

-- peek_line: the head of a line, and whether there is another behind it. Returns whether there is a head.
local function peek_line(line)
  local first = redis.call('ZRANGE', line.key, '0', '1', 'WITHSCORES')
  line.head, line.order, line.more = first[1], tonumber(first[2]), first[3]
  line.least, line.parked, line.at, line.own, line.expires, line.by = nil, nil, nil, nil, nil, nil
  return line.head
end

-- sort_lines: the most urgent lane first, then the older head. Every eighth send of a user who waits in several lanes
-- goes the other way round: the lower lanes do not starve.
local function sort_lines(user)
  local lines = user.lines
  user.several = false
  for _, line in ipairs(lines) do user.several = user.several or lines[1].lane ~= line.lane end
  local sign = user.several and sign_of(user.turn) or 1
  table.sort(lines, function(a, b)
    if a.rank ~= b.rank then return a.rank * sign < b.rank * sign end
    return a.order < b.order
  end)
end

-- line_of: a line with its head and its claim, or nil where it is empty.
local function line_of(look, user, category, lane)
  local rules = look.rules
  local line = {category = category, lane = lane, rank = look.rank[lane] or MAX_RANK,
    key = line_key(user.name, category), policy = policy_of(rules, category), bypass = bypasses(rules, category),
    drops = drops(rules, category), cost = cost_of(rules, category)}
  if not peek_line(line) then return nil end
  line.flying, line.elsewhere, line.left = claim_of(user.name, category, look.worker, look.now)
  line.elsewhere = line.elsewhere or is_closed(user.closed, category, line.bypass)
  return line
end

local function select_user(look, name, index)
  local fields = redis.call('HGETALL', lines_key(name))
  local user = {name = name, sent = sent_key(name), policy = look.rules.users[index + 1], index = index, lines = {},
    next = {}, flying = {}, sends = 0, closed = closed_lines(name, fields)}
  fields, user.whole = part_of(fields, look.rank)
  for i = 1, #fields, 2 do
    local category, lane = fields[i], fields[i + 1]
    if category == '#turn' then user.turn = lane
    elseif is_line(category) then
      local line = line_of(look, user, category, lane)
      if line then user.lines[#user.lines + 1] = line else redis.call('HDEL', lines_key(name), category) end
    end
  end
  sort_lines(user)
  return user
end

-- pass_on: line i has lost its head. Of a user's last line the whole hash of lines goes, in the end.
local function pass_on(user, i)
  local line, lines = user.lines[i], user.lines
  if line.more and peek_line(line) then return end
  if user.whole or user.closed or #lines > 1 then redis.call('HDEL', lines_key(user.name), line.category) end
  table.remove(lines, i)
end
