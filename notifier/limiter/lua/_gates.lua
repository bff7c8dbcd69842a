-- The rules: {u: [policy of a user, …], c: {category: policy}, b: {category: true if it bypasses}, l: [lane, …]}.
-- A category that is not (or no longer) among them follows those of 'default'.
local function policy_of(rules, category) return rules.c[category] or rules.c.default end
local function bypasses(rules, category)
  if rules.c[category] then return rules.b[category] end
  return rules.b.default
end

-- next_of: the first µs at which the rules admit a send of `category` to `user`.
local function next_of(user, user_next, category, policy, bypass)
  if bypass then return 0 end
  if is_empty(policy) then return user_next end
  return math.max(user_next, (next_for(sent_key(user, category), policy, 1)))
end

-- expect: tells RQ until when a job waits.
local function expect(id, at)
  local origin = redis.call('HGET', job_key(id), 'origin')
  if origin then redis.call('ZADD', 'rq:scheduled:' .. origin, 'XX', seconds(at), id) end
end

-- set_gates: leaves a gate in each lane at the earliest `at` of the user's lines there, and the expected time of
-- each line's head beside it. lines: array of {category, lane, head id, at}. Returns the earliest of all.
local function set_gates(user, lines, now)
  local gates, earliest = {}, nil
  for _, line in ipairs(lines) do
    local at = math.max(line.at, now)
    if not gates[line.lane] or at < gates[line.lane] then gates[line.lane] = at end
    if at > now then
      expect(line.head, at)
    end
  end
  for lane, at in pairs(gates) do
    redis.call('ZADD', 'notifier:gates:' .. lane, text(at), user)
    if not earliest or at < earliest then earliest = at end
  end
  return earliest, gates
end
