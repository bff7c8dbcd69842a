--! exports new_user new_backlog
--! needs backlog_key rules_of sent_key
-- What is judged: a user, and a backlog of the user's, before anything but their rules is known. What else these tables
-- get is told of in select.lua.

-- new_user: policy: the user's, and its index in the rules.
local function new_user(name, policy, index)
  return {name = name, sent = sent_key(name), policy = policy, index = index}
end

-- new_backlog: of a user, in a lane; why: it waits, see waits.lua.
local function new_backlog(rules, user, category, lane, why)
  local of = rules_of(rules, category)
  local name = user.name
  return {category = category, lane = lane, key = backlog_key(name, category), sent = sent_key(name, category),
    policy = of.policy, bypass = of.bypass, drops = of.drops, cost = of.cost, why = why}
end
