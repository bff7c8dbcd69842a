--! on_demand MAX_RANK order_of peek_next sort_backlogs select_user pass_on
--! needs backlogs_key claim_of closed_backlogs is_closed MAX_LINES new_backlog new_user part_of read_backlogs sign_of
--! needs waits
-- Select: the backlogs of a user who is visited, and which heads may go next. A user is a table
--   name, sent (key), policy, index (of the policy, in the rules)
--   backlogs in the order in which their heads are tried, see *sort_backlogs*; several: they stand in many lanes
--   turn     #turn; closed: the categories with orphans, see orphans.lua; whole: where this is a part, see parts.lua
--   lowered  whether background pushes may stand behind alerts, see *lower*
--   left     the lanes that a backlog has left, as a set: none of them may keep a wake-up in vain
--   next     {cost: {µs at which the user's own rules let one go, rule}}, where there are several
--            backlogs; sends: how many went
-- and a backlog of it
--   category, lane, rank, key; policy, bypass, drops, cost: the rules of its category
--   head, order, more: the job that is next, its place (see *order_of*), whether another stands behind it
--   claim: see claims.lua; elsewhere: another worker has some of it, or it has an orphan
--   at, own, least, by: when the head may go, and what decides it, see admits_at.lua
--   unread, waits_for, refused: why not, see decide.lua; why: it waits, see waits.lua
local MAX_RANK = 99 -- of a lane that the caller does not serve

-- peek_backlog: the head of a backlog, and whether there is another behind it. Returns whether there is a head.
local function peek_backlog(backlog)
  local first = redis.call('ZRANGE', backlog.key, '0', '1')
  backlog.head = first[1]
  if first[2] then backlog.more = true end
  return backlog.head
end

-- order_of: the place of the head of a backlog: few ask for it.
local function order_of(backlog)
  backlog.order = backlog.order or tonumber(redis.call('ZSCORE', backlog.key, backlog.head))
  return backlog.order
end

-- peek_next: as *peek_backlog*, where the backlog had another head, of which nothing is known any more.
local function peek_next(backlog)
  backlog.least, backlog.waits_for, backlog.at, backlog.own, backlog.expires, backlog.by = nil, nil, nil, nil, nil, nil
  backlog.more, backlog.order = nil, nil
  return peek_backlog(backlog)
end

-- sort_backlogs: the most urgent lane first, then the older head. Every eighth send of a user who waits in several
-- lanes goes the other way round: the lower lanes do not starve. (How much of a worker's room each lane gets:
-- lane_shares.lua.)
local function sort_backlogs(user)
  local backlogs = user.backlogs
  user.several = false
  if not backlogs[2] then return end
  for _, backlog in ipairs(backlogs) do user.several = user.several or backlogs[1].lane ~= backlog.lane end
  local sign = user.several and sign_of(user.turn) or 1
  table.sort(backlogs, function(a, b)
    if a.rank ~= b.rank then return a.rank * sign < b.rank * sign end
    return order_of(a) < order_of(b)
  end)
end

-- forget_backlog: one that is empty is not noted any more.
local function forget_backlog(user, category, lane)
  redis.call('HDEL', backlogs_key(user.name), category)
  user.left[lane] = true
  local lanes = user.whole and user.whole.lanes
  if lanes then lanes[lane] = lanes[lane] > 1 and lanes[lane] - 1 or nil end
end

-- add_backlog: with its head, unless it is empty. why: it waits.
local function add_backlog(look, user, category, lane, why)
  local backlog = new_backlog(look.rules, user, category, lane, why)
  if not peek_backlog(backlog) then return forget_backlog(user, category, lane) end
  local claim = claim_of(user.name, category, look.claimant, look.now)
  backlog.rank, backlog.claim = look.rank[lane] or MAX_RANK, claim
  local is_shut = user.closed and is_closed(user.closed, category, backlog.bypass)
  if claim.elsewhere or is_shut then backlog.elsewhere = true end
  user.backlogs[#user.backlogs + 1] = backlog
end

local function select_user(look, name, index)
  local user, found, fields, some_orphans = new_user(name, look.rules.users[index + 1], index), read_backlogs(name)
  user.backlogs, user.left, user.sends = {}, {}, 0
  if some_orphans then user.closed = closed_backlogs(name, fields) end
  if fields['#lowered'] then user.lowered = true end
  if #found > 2 * MAX_LINES then found, user.whole = part_of(found, fields['#part'], look.rank) end
  for i = 1, #found, 2 do
    add_backlog(look, user, found[i], found[i + 1], waits.why_in(fields, found[i]))
  end
  if user.backlogs[2] then
    user.turn = fields['#turn']
    sort_backlogs(user)
  end
  return user
end

-- pass_on: backlog i has lost its head. Of a user's last backlog the whole hash of backlogs goes, in the end.
local function pass_on(user, i)
  local backlog, backlogs = user.backlogs[i], user.backlogs
  if backlog.more and peek_next(backlog) then return end
  if user.whole or user.closed or #backlogs > 1 then forget_backlog(user, backlog.category, backlog.lane) end
  table.remove(backlogs, i)
end
