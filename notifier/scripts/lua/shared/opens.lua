--! exports opens_at
-- opens_at: the first µs at which the rules let the head of a line go, whatever the providers say; or nil and the name
-- of a zone of which @zones does not tell yet. line: {category, head, policy, bypass, cost} and, where it has met a
-- limit of its device, least: not before that µs. What the category's rules say stands in line.own from then on, and
-- what the user's say in user_next, {cost: µs}, as long as nothing of theirs goes.
local function opens_at(rules, user, policy, line, user_next, now)
  local cost, at = line.cost, 0
  if not line.bypass then
    user_next[cost] = user_next[cost] or next_for(sent_key(user), policy, cost)
    at = user_next[cost]
  end
  line.own = line.own or next_of(user, 0, line.category, line.policy, line.bypass, cost)
  at = math.max(at, line.own, line.least or 0)
  if rules.z and not line.bypass then
    local unknown
    at, unknown = by_the_clock(rules, user, policy, line, at, now)
    if not at then return nil, unknown end
  end
  return digest_at(rules, line.category, line.head, at, now)
end
