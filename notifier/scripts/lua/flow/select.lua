--! on_demand MAX_RANK peek_backlog sort_backlogs select_user pass_on
--! needs backlogs_key claim_of closed_backlogs is_backlog is_closed new_backlog new_user part_of sign_of waits
-- Select: the backlogs of a user who is visited, and which heads may go next. A user is a table
--   name, sent (key), policy, index (of the policy, in the rules)
--   backlogs in the order in which their heads are tried, see *sort_backlogs*; several: they stand in many lanes
--   turn     #turn; closed: the categories with orphans, see orphans.lua; whole: where this is a part, see parts.lua
--   left     the lanes that a backlog has left, as a set: none of them may keep a wake-up in vain
--   next     {cost: {µs at which the user's own rules let one go, rule}}, where there are several
--            backlogs; sends: how many went
-- and a backlog of it
--   category, lane, rank, key; policy, bypass, drops, cost: the rules of its category
--   head, order, more: the job that is next, its place, whether another stands behind it
--   claim: see claims.lua; elsewhere: another worker has some of it, or it has an orphan
--   at, own, least, by: when the head may go, and what decides it, see admits_at.lua
--   unread, waits_for, refused: why not, see decide.lua; why: it waits, see waits.lua
local MAX_RANK = 99 -- of a lane that the caller does not serve

-- peek_backlog: the head of a backlog, and whether there is another behind it. Returns whether there is a head.
local function peek_backlog(backlog)
  backlog.least, backlog.waits_for, backlog.at, backlog.own, backlog.expires, backlog.by = nil, nil, nil, nil, nil, nil
  local first = redis.call('ZRANGE', backlog.key, '0', '1', 'WITHSCORES')
  backlog.head, backlog.order, backlog.more = first[1], tonumber(first[2]), first[3]
  return backlog.head
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
    return a.order < b.order
  end)
end

-- forget_backlog: one that is empty is not noted any more.
local function forget_backlog(user, category, lane)
  redis.call('HDEL', backlogs_key(user.name), category)
  user.left[lane] = true
  local lanes = user.whole and user.whole.lanes
  if lanes then lanes[lane] = lanes[lane] > 1 and lanes[lane] - 1 or nil end
end

-- add_backlog: with its head, unless it is empty.
local function add_backlog(look, user, category, lane, why)
  local backlog = new_backlog(look.rules, user, category, lane, why or '?')
  if not peek_backlog(backlog) then return forget_backlog(user, category, lane) end
  backlog.rank, backlog.claim = look.rank[lane] or MAX_RANK, claim_of(user.name, category, look.claimant, look.now)
  backlog.elsewhere = backlog.claim.elsewhere or is_closed(user.closed, category, backlog.bypass)
  user.backlogs[#user.backlogs + 1] = backlog
end

local function select_user(look, name, index)
  local user, fields = new_user(name, look.rules.users[index + 1], index), redis.call('HGETALL', backlogs_key(name))
  user.backlogs, user.left, user.sends, user.closed = {}, {}, 0, closed_backlogs(name, fields)
  fields, user.whole = part_of(fields, look.rank)
  local whys = waits.read(fields)
  for i = 1, #fields, 2 do
    local category, lane = fields[i], fields[i + 1]
    if category == '#turn' then user.turn = lane
    elseif is_backlog(category) then add_backlog(look, user, category, lane, whys[category]) end
  end
  sort_backlogs(user)
  return user
end

-- pass_on: backlog i has lost its head. Of a user's last backlog the whole hash of backlogs goes, in the end.
local function pass_on(user, i)
  local backlog, backlogs = user.backlogs[i], user.backlogs
  if backlog.more and peek_backlog(backlog) then return end
  if user.whole or user.closed or #backlogs > 1 then forget_backlog(user, backlog.category, backlog.lane) end
  table.remove(backlogs, i)
end
