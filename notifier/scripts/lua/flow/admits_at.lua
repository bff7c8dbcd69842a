--! exports opens_at
--! needs by_the_clock digest_at is_empty muted_until next_for rule_mark users_rules
-- of_user: the first µs at which the user's own rules let `cost` go, and which rule decides it.
local function of_user(user, cost)
  local known = user.next and user.next[cost]
  if known then return known[1], known[2] end
  local at, rule = next_for(user.sent, user.policy, cost)
  if user.next then user.next[cost] = {at, rule} end
  return at, rule
end

local FOREVER = 7226582400000000 -- when a mute without end ends, see preferences.py
-- opens_at: the first µs at which the rules let the head of a backlog go, whatever the providers say; or nil and the
-- name of a zone of which @zones does not tell yet. Where it has met a limit of its device, not before backlog.least.
-- What the category's rules say stands in backlog.own from then on, and what the user's say in user.next, {cost: {µs,
-- rule}}, as long as nothing of theirs goes; without user.next it is asked once. backlog.by becomes what decides, as
-- history.lua has it; backlog.mutes whether its user has it dropped, backlog.zone the one that the user chose.
local function opens_at(rules, user, backlog, now)
  local at, rule = 0, nil
  if not backlog.bypass then at, rule = of_user(user, backlog.cost) end
  if not backlog.own then
    if backlog.bypass or is_empty(backlog.policy) then backlog.own = 0
    else backlog.own, backlog.rule = next_for(backlog.sent, backlog.policy, backlog.cost) end
  end
  local own, least = backlog.own, backlog.least or 0
  local by_user = at >= own
  at = math.max(at, own, least)
  if at > now then
    backlog.by = at == least and 'd' or by_user and 'u' .. rule_mark(user.policy, rule)
      or 'c' .. rule_mark(backlog.policy, backlog.rule)
  end
  if backlog.bypass then return digest_at(rules, backlog, at, now) end
  local chosen = users_rules.chosen[user.name]
  if chosen then
    local till
    till, backlog.mutes = muted_until(chosen, backlog.category, now)
    if till and till > at then at, backlog.by = till, 'm' end
    backlog.zone = chosen.z
  end
  if rules.clock and at < FOREVER then
    local unknown
    at, unknown = by_the_clock(rules, user, backlog, at, now)
    if not at then return nil, unknown end
  end
  return digest_at(rules, backlog, at, now)
end
