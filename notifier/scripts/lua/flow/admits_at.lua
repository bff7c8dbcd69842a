--! exports opens_at
--! needs by_the_clock digest_at muted_until next_for rule_mark users_rules
local FOREVER = 7226582400000000 -- the end of a mute without an end, see preferences.py
local function open_by_clock(rules, user, backlog, at, now)
  if not rules.clock or at >= FOREVER then return at end
  return by_the_clock(rules, user, backlog, at, now)
end

-- opens_at: the first µs at which the rules let the head of a backlog go, whatever its providers allow; or nil and the
-- name of a zone that @zones does not have yet. It is not before backlog.least, which a limit of a device has set. It
-- sets backlog.by to the reason that decides, of history.lua; backlog.mutes: whether a mute drops the head;
-- backlog.zone: the zone that the user chose.
local function opens_at(rules, user, backlog, now)
  local least, at, own, rule, own_rule = backlog.least or 0, 0, 0, nil, nil
  if not backlog.bypass then
    at, rule = next_for(user.sent, user.policy, backlog.cost)
    own, own_rule = next_for(backlog.sent, backlog.policy, backlog.cost)
  end
  local by_user = at >= own
  at = math.max(at, own, least)
  if at > now then
    backlog.by = at == least and 'd' or by_user and 'u' .. rule_mark(user.policy, rule)
      or 'c' .. rule_mark(backlog.policy, own_rule)
  end
  if backlog.bypass then return digest_at(backlog, at, now) end
  local chosen = users_rules.chosen[user.name]
  if chosen then
    local till
    till, backlog.mutes = muted_until(chosen, backlog.category, now)
    if till and till > at then at, backlog.by = till, 'm' end
    backlog.zone = chosen.z
  end
  local opens, unknown = open_by_clock(rules, user, backlog, at, now)
  local gathered = opens and digest_at(backlog, opens, now)
  if gathered == opens then return opens, unknown end
  return open_by_clock(rules, user, backlog, gathered, now) -- it may be complete in quiet hours
end
