--! on_demand MAX_RANK order_of peek_next sort_backlogs select_user pass_on
--! needs backlog_key backlogs_key claim_of closed_backlogs is_closed MAX_LINES new_backlog new_user part_of
--! needs read_backlogs sign_of waits
-- Select: the backlogs of a user in a visit, and the heads that may go next. A user is a table with
--   name, sent (key), policy, index (of the policy, in the rules)
--   backlogs   in the order in which their heads are tried, see *sort_backlogs*; several: they are in several lanes
--   turn       #turn
--   closed     the categories with orphans, see orphans.lua
--   whole      if these are a part of the user's backlogs, see parts.lua
--   lowered    whether background pushes may be behind alerts, see *lower*
--   lanes      set of the lanes of the backlogs before the visit, and of the wake-up: their wake-ups may have to go
--   sends      how many went
-- and a backlog is a table with
--   category, lane, rank, key
--   of                            the rules of its category, see rule_table.lua
--   policy, bypass, drops, cost   of these rules
--   head, order, more             the next job, its order (see *order_of*), the job behind it
--   claim                         see claims.lua
--   elsewhere                     whether another worker has some of it in flight, or it has an orphan
--   at, by, least                 when the head may go, and the rule that decides it, see admits_at.lua
--   unread, waits_for, refused    why the head may not go, see decide.lua
--   why                           the reason for which it waits, see waits.lua
local MAX_RANK = 99 -- the rank of a lane that the caller does not serve

-- peek_backlog: reads the head of a backlog, and the job behind it. Returns the head, or nil.
local function peek_backlog(backlog)
  local first = redis.call('ZRANGE', backlog.key, '0', '1')
  backlog.head, backlog.more = first[1], first[2]
  return backlog.head
end

-- order_of: the order of a backlog's head, read when it is first needed.
local function order_of(backlog)
  backlog.order = backlog.order or tonumber(redis.call('ZSCORE', backlog.key, backlog.head))
  return backlog.order
end

-- peek_next: like *peek_backlog*, after the head has gone; clears what was known of the old head.
local function peek_next(backlog)
  backlog.waits_for, backlog.at, backlog.by, backlog.order = nil, nil, nil, nil
  return peek_backlog(backlog)
end

-- sort_backlogs: the most urgent lane first, then the older head. For every eighth send of a user with backlogs in
-- several lanes the lanes are reversed, so the lower lanes do not starve. (lane_shares.lua divides a worker's room
-- among the lanes.)
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

-- forget_backlog: deletes the field of an empty backlog.
local function forget_backlog(user, category, lane)
  redis.call('HDEL', backlogs_key(user.name), category)
  local lanes = user.whole and user.whole.lanes
  if lanes then lanes[lane] = lanes[lane] > 1 and lanes[lane] - 1 or nil end
end

-- add_backlog: adds a backlog with its head, unless it is empty. why: the reason for which it waits.
local function add_backlog(look, user, category, lane, why)
  local backlog = new_backlog(look.rules, user, category, lane, why)
  backlog.key = backlog_key(user.name, category)
  user.lanes[lane] = true
  if not peek_backlog(backlog) then return forget_backlog(user, category, lane) end
  local claim = claim_of(user.name, category, look.claimant, look.now)
  backlog.rank, backlog.claim = look.rank[lane] or MAX_RANK, claim
  local is_shut = user.closed and is_closed(user.closed, category, backlog.bypass)
  if claim.elsewhere or is_shut then backlog.elsewhere = true end
  user.backlogs[#user.backlogs + 1] = backlog
end

local function select_user(look, name, index)
  local user, found, fields, some_orphans = new_user(name, look.rules.users[index + 1], index), read_backlogs(name)
  user.backlogs, user.lanes, user.sends = {}, {}, 0
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

-- pass_on: goes on to the next job of backlog i, whose head has gone. After a user's last backlog the visit deletes the
-- whole hash of backlogs.
local function pass_on(user, i)
  local backlog, backlogs = user.backlogs[i], user.backlogs
  if backlog.more and peek_next(backlog) then return end
  if user.whole or user.closed or #backlogs > 1 then forget_backlog(user, backlog.category, backlog.lane) end
  table.remove(backlogs, i)
end
