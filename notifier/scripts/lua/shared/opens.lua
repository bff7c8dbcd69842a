--! exports opens_at
-- opens_at: the first µs at which the rules let the head of a line go, whatever the providers say; or nil and the name
-- of a zone of which @zones does not tell yet. line: {category, head, policy, bypass, cost} and, where it has met a
-- limit of its device, least: not before that µs. What the category's rules say stands in line.own from then on, and
-- what the user's say in user_next, {cost: {µs, rule}}, as long as nothing of theirs goes. line.by becomes what
-- decides, see *set_gates*; line.mutes whether its user has it dropped, line.zone the one that the user chose.
local function opens_at(rules, user, policy, line, user_next, now)
  local cost, at, rule = line.cost, 0, nil
  if not line.bypass then
    user_next[cost] = user_next[cost] or {next_for(sent_key(user), policy, cost)}
    at, rule = unpack(user_next[cost])
  end
  if not line.own then line.own, line.rule = next_of(user, line.category, line.policy, line.bypass, cost) end
  local of_user, least = at >= line.own, line.least or 0
  at = math.max(at, line.own, least)
  if at > now then
    line.by = at == least and 'd' or of_user and {'u', policy, rule} or {'c', line.policy, line.rule}
  end
  local chosen = not line.bypass and preferences.known[user]
  if chosen then
    local till
    till, line.mutes = muted_until(chosen, line.category, now)
    if till and till > at then at, line.by = till, 'm' end
    line.zone = chosen.z
  end
  if rules.clock and not line.bypass then
    local unknown
    at, unknown = by_the_clock(rules, user, policy, line, at, now)
    if not at then return nil, unknown end
  end
  local gathered = digest_at(rules, line.category, line.head, at, now)
  if gathered > at then line.by = 'g' end
  return gathered
end
