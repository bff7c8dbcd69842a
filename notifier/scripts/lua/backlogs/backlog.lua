--! exports new_user new_backlog read_backlogs lanes_of
--! needs backlogs_key rules_of sent_key
-- The tables of a user and of a backlog, with no more than their rules. select.lua describes the fields that they get
-- later.

-- new_user: policy: the user's, with its index in the rules.
local function new_user(name, policy, index)
  return {name = name, sent = sent_key(name), policy = policy, index = index}
end

-- new_backlog: a user's, in a lane. why: the reason for which it waits, see waits.lua.
local function new_backlog(rules, user, category, lane, why)
  local of = rules_of(rules, category)
  local name = user.name
  return {category = category, lane = lane, sent = sent_key(name, category), of = of, policy = of.policy,
    bypass = of.bypass, drops = of.drops, cost = of.cost or 1, why = why}
end

local HASH, O = ('#o'):byte(1, 2) -- fields that are no categories begin with '#', those of orphans with '#o'
-- read_backlogs: the fields of @backlogs:{user}: {category, lane, …} of the backlogs; the other fields by their names;
-- and whether some are of orphans.
local function read_backlogs(user)
  local fields, found, beside, some_orphans = redis.call('HGETALL', backlogs_key(user)), {}, {}, false
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if name:byte() == HASH then
      beside[name], some_orphans = value, some_orphans or name:byte(2) == O
    else found[#found + 1], found[#found + 2] = name, value end
  end
  return found, beside, some_orphans
end

-- lanes_of: how many of these backlogs are in each lane.
local function lanes_of(found)
  local lanes = {}
  for i = 2, #found, 2 do lanes[found[i]] = (lanes[found[i]] or 0) + 1 end
  return lanes
end
