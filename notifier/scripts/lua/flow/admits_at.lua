--! exports opens_at
--! needs by_the_clock digest_at muted_until next_for next_of preferences sent_key
-- opens_at: the first µs at which the rules let the head of a backlog go, whatever the providers say; or nil and the
-- name of a zone of which @zones does not tell yet. backlog: {category, head, policy, bypass, cost} and, where it has
-- met a limit of its device, least: not before that µs. What the category's rules say stands in backlog.own from then
-- on, and what the user's say in user_next, {cost: {µs, rule}}, as long as nothing of theirs goes; or nil, where it is
-- asked once. backlog.by becomes
-- what decides, see *set_wake_ups*; backlog.mutes whether its user has it dropped, backlog.zone the one that the user
-- chose.
local function opens_at(rules, user, policy, backlog, user_next, now)
  local cost, at, rule = backlog.cost, 0, nil
  if not backlog.bypass then
    local known = user_next and user_next[cost]
    if known then at, rule = known[1], known[2]
    else
      at, rule = next_for(sent_key(user), policy, cost)
      if user_next then user_next[cost] = {at, rule} end
    end
  end
  if not backlog.own then
    backlog.own, backlog.rule = next_of(user, backlog.category, backlog.policy, backlog.bypass, cost)
  end
  local of_user, least = at >= backlog.own, backlog.least or 0
  at = math.max(at, backlog.own, least)
  if at > now then
    backlog.by = at == least and 'd' or of_user and {'u', policy, rule} or {'c', backlog.policy, backlog.rule}
  end
  local chosen = not backlog.bypass and preferences.known[user]
  if chosen then
    local till
    till, backlog.mutes = muted_until(chosen, backlog.category, now)
    if till and till > at then at, backlog.by = till, 'm' end
    backlog.zone = chosen.z
  end
  if rules.clock and not backlog.bypass then
    local unknown
    at, unknown = by_the_clock(rules, user, policy, backlog, at, now)
    if not at then return nil, unknown end
  end
  if not rules.digests then return at end
  local gathered = digest_at(rules, backlog.category, backlog.head, at, now)
  if gathered > at then backlog.by = 'g' end
  return gathered
end
