-- admit: for each user whose gate is due, takes as many heads of the user's lines as the rules admit, in order,
-- and leaves the user's gates at the moment the rules admit the next.
-- ARGV 1 clock  2 most heads taken in all  3 lease µs  4 the worker's name  5 the caller's lanes, JSON array
--      6 rules, JSON (see gates.lua)
--      7 the users, JSON: user, lane in which the gate was due, µs since when, index of its policy in u (from 0), …
--      8 the targets of jobs that came without, JSON: {job id: targets}, see targets.lua; or ''
--      9 the routes by which the caller may send so many more and no more, JSON: {route: how many}; or ''
--      10 from this µs on nothing is taken, as a lease may have lapsed whose job is to go first (of *pull*); or -1
-- returns {now, looks, {job id, user, category, µs left, …}, {job id, user, data, zone, …}, {job id, permit, user,
--          category, data, µs left until it expires or nil, attempts, crashes, answered or nil, shut routes or nil,
--          how many it stands for if several, 1 if it is to be dropped, how often it was refused without an attempt
--          if ever}, …}
--   looks: how many users were looked at and had nothing that might go. The third: the heads that wait on. The fourth:
--   jobs of plain producers at the heads of lines that stay shut until the caller says by ARGV 8 whom they are for; and
--   with a zone, and no data, the head of a line that stays shut until the caller has written the zone into
--   @zones, or where there is no such zone has taken push_zone out of the job.
--   A head taken with 0 µs or less until it expires has expired; no permit stands in the user's set for it, nor for one
--   that is to be dropped.
--! include clock keys counts burst rules due gates many claims gather
--! include newcomer take routes targets limits zones orphans full
local now, room, lease, worker = now_us(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local rules = read_rules(ARGV[6])
local rank = {}
for i, lane in ipairs(cjson.decode(ARGV[5])) do rank[lane] = i end
local reply = {now, 0, {}, {}}
local TRIM_EVERY, MAX_EXPECTED = 8, 100
local MAX_UNREAD = 25
local to_lower = 100 -- in one call
local to_expect = 400 -- in one call: the users behind are told when they are looked at again
local MAX_HEADS = 25 -- of one user at one look: what is more stays due, so that one backlog does not fill the batch
local earliest = math.huge -- of what is set here to fall due for whoever looks first
local emptied = {} -- the hashes of lines to be deleted

local until_text = text(now + lease)
local users = cjson.decode(ARGV[7])
local holds = read_circuits()
local rooms = ARGV[9] ~= '' and cjson.decode(ARGV[9])
if ARGV[8] ~= '' then
  for id, targets in pairs(cjson.decode(ARGV[8])) do
    if redis.call('EXISTS', job_key(id)) == 1 then redis.call('HSET', job_key(id), 'push_targets', targets) end
  end
end
local first_lapses = tonumber(ARGV[10])
if first_lapses >= 0 and now >= first_lapses then room = 0 end
local seq = #users > 0 and redis.call('INCRBY', '@seq', text(room)) - room or 0

-- peek_line: the head of a line, and whether there is another behind it. Returns whether there is a head.
local function peek_line(line)
  local first = redis.call('ZRANGE', line.key, 0, 1, 'WITHSCORES')
  line.head, line.order, line.more = first[1], tonumber(first[2]), first[3]
  line.least, line.parked, line.at, line.own, line.expires = nil, nil, nil, nil, nil
  return line.head
end

-- sort_lines: the most urgent lane first, then the older head. Every eighth send of a user who waits in several lanes
-- goes the other way round: the lower lanes do not starve. Returns whether there are several lanes.
local function sort_lines(lines, turn)
  local several = false
  for _, line in ipairs(lines) do several = several or lines[1].lane ~= line.lane end
  local sign = several and sign_of(turn) or 1
  table.sort(lines, function(a, b)
    if a.rank ~= b.rank then return a.rank * sign < b.rank * sign end
    return a.order < b.order
  end)
  return several
end

local closed -- of the user who is looked at: which lines have orphans, see orphans.lua; nil where none has
-- lines_of: the user's lines that have a head, in the order of *sort_lines*; whether they stand in several lanes;
-- #turn.
local function lines_of(user, fields)
  local lines, turn = {}, nil
  for i = 1, #fields, 2 do
    local category, lane = fields[i], fields[i + 1]
    if category == '#turn' then turn = lane
    elseif is_line(category) then
      local line = {category = category, lane = lane, rank = rank[lane] or 99, key = line_key(user, category),
        policy = policy_of(rules, category), bypass = bypasses(rules, category), drops = drops(rules, category),
        cost = cost_of(rules, category)}
      if peek_line(line) then
        line.flying, line.elsewhere, line.left = claim_of(user, category, worker, now)
        line.elsewhere = line.elsewhere or is_closed(closed, category, line.bypass)
        lines[#lines + 1] = line
      else
        redis.call('HDEL', lines_key(user), category)
      end
    end
  end
  return lines, sort_lines(lines, turn), turn
end

local whole -- of the user who is looked at, see many.lua; nil where all the lines are
-- advance: line i has lost its head. Of a user's last line the whole hash of lines goes, in `visit`.
local function advance(user, lines, i)
  local line = lines[i]
  if line.more and peek_line(line) then return end
  if whole or closed or #lines > 1 then redis.call('HDEL', lines_key(user), line.category) end
  table.remove(lines, i)
end

--! include judge

-- spend: records what goes under `permit`: with the user, the category, the projects and the devices.
local function spend(user, sent, policy, index, line, permit, needs, open)
  local trim, at = seq % TRIM_EVERY == 0, now + lease
  if not is_empty(policy) then record(sent, policy, permit, at, until_text, now, trim, line.cost) end
  if not is_empty(line.policy) then
    record(sent_key(user, line.category), line.policy, permit, at, until_text, now, trim, line.cost)
  end
  for _, need in ipairs(needs) do
    local project = project_of(rules, need.route, need.platform, now)
    if project then count_project(project, need.n) end
    if rooms and rooms[need.by] then rooms[need.by] = rooms[need.by] - need.n end
    note_probe(need.route)
  end
  for _, target in ipairs(open or {}) do
    count_device(rules, index, target, line.bypass, permit, at, until_text, now)
  end
end

local function names_of(targets)
  local names = {}
  for i, target in ipairs(targets) do names[i] = target.route end
  return #names > 0 and table.concat(names, ' ')
end

-- send_head: takes the head of line i, and counts it in `flying`: see *claim*. needs, open, shut: of *judge*; nil
-- for what has expired. Returns whether a permit was spent on it. A permit that ends in 'd' was counted with devices,
-- one in 'n' nowhere; one with x and a number counts as so many sends.
local function send_head(user, sent, policy, index, lines, i, flying, job, needs, open, shut, dropped)
  local line = lines[i]
  local permit = text(seq + 1)
  if line.cost > 1 then permit = permit .. 'x' .. line.cost end
  permit = permit .. (open and 'd' or needs and '' or 'n')
  reply[#reply + 1] = take(now, until_text, worker, line.key, user, line.category, line.head, permit, job,
    shut and names_of(shut) or false, dropped)
  for _, target in ipairs(shut or {}) do
    line.left = line.left or {}
    line.left[target.route] = true
  end
  flying[line.category] = {n = (flying[line.category] or {n = line.flying}).n + 1, left = line.left}
  room, seq = room - 1, seq + 1 -- one number for each: those of deleted jobs are not used, as only `room` are ours
  if needs then spend(user, sent, policy, index, line, permit, needs, open) end
  advance(user, lines, i)
  return needs
end

-- step_aside: the rest of what other routes took leaves its line, or it would keep back what can go by them. It comes
-- back to its place when its route is up, or when it expires. What has met a fault lets the others of its line pass.
local function step_aside(line, job, names)
  redis.call('ZREM', line.key, line.head)
  redis.call('ZADD', '@later', text(job.deadline or FAR), line.head)
  if job.deadline then earliest = math.min(earliest, job.deadline) end
  for _, name in ipairs(names) do
    redis.call('ZADD', parked_key(name), text(line.order + (job.refusals and FAR or 0)), 'j' .. line.head)
    if not job.refusals then
      redis.call('ZADD', rests_key(line.key, name), text(line.order), line.head)
      redis.call('EXPIRE', rests_key(line.key, name), RESTS_KEPT)
    end
  end
end

-- ask: has the caller read whom the jobs at the head of a line are for. Nothing of the line goes before.
local function ask(user, line)
  for _, id in ipairs(redis.call('ZRANGE', line.key, 0, MAX_UNREAD - 1)) do
    local job = redis.call('HMGET', job_key(id), 'data', 'push_targets')
    if job[1] and not job[2] then
      for _, value in ipairs({id, user, job[1], ''}) do reply[4][#reply[4] + 1] = value end
    end
  end
end

-- park: the user stands, in each of these lanes, where the heads of the parked lines wait, and nowhere else; behind
-- those who were due before `since`; behind them who waits for a circuit with a head that was refused before.
local function park(user, lanes, lines, since)
  for name in pairs(holds) do
    local waits = {}
    for _, line in ipairs(lines) do
      for _, of_line in ipairs(line.parked or {}) do
        if of_line == name then
          waits[line.lane] = waits[line.lane] ~= 'first' and line.refused and 'last' or 'first'
        end
      end
    end
    for lane in pairs(lanes) do
      local member = 'u' .. lane .. ' ' .. user
      if waits[lane] then
        local at = math.min(since, now)
        if waits[lane] == 'last' and holds[name].state == 'open' then at = now + FAR end
        redis.call('ZADD', parked_key(name), 'NX', text(at), member)
      else redis.call('ZREM', parked_key(name), member) end
    end
  end
end

-- expect_all: tells RQ when those behind the heads should go. Once for a user who begins to wait; whoever joins a
-- line later learns it from *pull*.
local function expect_all(lines, step)
  for _, line in ipairs(lines) do
    local behind = redis.call('ZRANGE', line.key, 1, math.min(MAX_EXPECTED, to_expect))
    for n, id in ipairs(behind) do
      local origin = redis.call('HGET', job_key(id), 'origin')
      if origin then gather('ZADD XX', '@rq:scheduled:' .. origin, seconds(now + n * step), id) end
    end
    to_expect = to_expect - #behind
  end
end

-- lower: a background push whose device has no room, as Apple takes three an hour, steps behind the alerts of its line,
-- which have no such limit. It keeps its place among the background pushes. Returns when the head is to be looked at
-- again, or nil where that may be at once. at: when its device has room.
local function lower(user, line, at)
  local order = tonumber(redis.call('ZSCORE', line.key, line.head))
  if line.drops or order >= LOWERED / 2 then return at end
  if to_lower == 0 then return now + 1 end -- the others of the line in the next call
  to_lower = to_lower - 1
  order = text(order + LOWERED)
  redis.call('ZADD', line.key, order, line.head)
  redis.call('HSET', job_key(line.head), 'push_order', order)
  redis.call('HSET', lines_key(user), '#lowered', '1')
  peek_line(line)
end

-- passes_lowered: a background push at the head would go before an older one that waits for its device.
local function passes_lowered(line, job)
  if line.drops or line.order >= LOWERED / 2 or not is_background(job.targets) then return false end
  local first = redis.call('ZRANGEBYSCORE', line.key, text(LOWERED / 2), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return first and first - LOWERED < line.order
end

-- try: what becomes of the head of line i, whose time has come or which ends here. Returns whether a permit was spent.
local function try(user, sent, policy, index, lines, i, flying)
  local line = lines[i]
  local job, origin = read_job(line.head)
  if not job then -- deleted or cancelled meanwhile
    redis.call('ZREM', line.key, line.head)
    if origin then redis.call('ZREM', '@rq:scheduled:' .. origin, line.head) end
    advance(user, lines, i)
  elseif job.deadline and job.deadline <= now then
    send_head(user, sent, policy, index, lines, i, flying, job)
  elseif line.at > now then
    send_head(user, sent, policy, index, lines, i, flying, job, nil, nil, nil, true)
  else
    local verdict, first, open, shut = judge(line, job, index)
    if verdict == 'go' and passes_lowered(line, job) then verdict, first, open = 'wait', now, true end
    if verdict == 'go' then
      return send_head(user, sent, policy, index, lines, i, flying, job, first, open, shut)
    elseif verdict == 'wait' then
      if open then first = lower(user, line, first) end
      line.at, line.least = first, first
    elseif verdict == 'unread' then
      line.unread = true
      ask(user, line)
    elseif verdict == 'behind' then
      line.elsewhere, line.at = true, now + lease -- its worker's settling opens the gate
    elseif job.answered and holds[first[1]].state ~= 'busy' and holds[first[1]].state ~= 'full' then
      -- What is busy, or full, has room soon: the line keeps its order.
      step_aside(line, job, first)
      advance(user, lines, i)
    else
      line.parked, line.at = first, tonumber(holds[first[1]]['until'])
      line.refused = job.refusals
    end
  end
  return false
end

local function visit(user, due_lane, since, index)
  local sent, policy = sent_key(user), rules.u[index + 1]
  local fields = redis.call('HGETALL', lines_key(user))
  closed = closed_lines(user, fields)
  fields, whole = part_of(fields, rank)
  local lines, several, turn = lines_of(user, fields)
  local lanes = {[due_lane] = true}
  for _, line in ipairs(lines) do lanes[line.lane] = true end

  local user_next, sends, asked, full, flying = {}, 0, #reply[4], #reply + MAX_HEADS, {}
  local function timed(line)
    -- Its worker's settling, or the end of its lease, opens the gate; or the caller's next call, which says what it
    -- read.
    if line.elsewhere or line.unread then return now + lease end
    user_next[line.cost] = user_next[line.cost] or next_for(sent, policy, line.cost)
    -- What its own rules say changes only when one of its own goes.
    line.own = line.own or next_of(user, 0, line.category, line.policy, line.bypass, line.cost)
    local at = math.max(line.least or 0, line.own, line.bypass and 0 or user_next[line.cost])
    if line.bypass or not rules.z then return digest_at(rules, line.category, line.head, at, now) end
    local unknown
    at, unknown = by_the_clock(rules, user, policy, line, at, now)
    if at then return digest_at(rules, line.category, line.head, at, now) end
    line.unread = true
    for _, value in ipairs({line.head, user, '', unknown}) do reply[4][#reply[4] + 1] = value end
    return now + lease
  end
  local function expires(line)
    if line.expires == nil then line.expires = redis.call('HGET', job_key(line.head), 'push_deadline') end
    local ends = number(line.expires)
    return ends and ends <= now
  end
  local i = 1
  while i <= #lines and room > 0 and #reply < full do
    local line = lines[i]
    line.at = line.at or timed(line)
    if line.rank == 99 or line.elsewhere or line.unread or line.parked
      or line.at > now and not expires(line) and not (line.drops and is_untried(line.head)) then
      i = i + 1
    elseif try(user, sent, policy, index, lines, i, flying) then
      sends, user_next = sends + 1, {}
      line.own = nil
      for _, other in ipairs(lines) do other.at = nil end
      if several then turn = redis.call('HINCRBY', lines_key(user), '#turn', 1) end
      several = sort_lines(lines, turn)
      i = 1
    end
  end

  for _, line in ipairs(lines) do
    if line.unread then line.at = nil end
    line.at = line.at or timed(line)
    local waits = line.at > now and not line.elsewhere and not line.unread and not line.parked
    if waits and line.drops and is_untried(line.head) then -- there was no room for it: it is due still
      line.at = now
    elseif waits then
      for _, value in ipairs({line.head, user, line.category, line.at - now}) do
        reply[3][#reply[3] + 1] = value
      end
    end
  end
  for category, of in pairs(flying) do claim(user, category, worker, of.n, of.left, lease, until_text) end
  local gates = set_gates(user, lines, now, turn)
  if whole then
    local least = math.huge
    for _, line in ipairs(lines) do
      if not line.parked then least = math.min(least, line.at) end
    end
    local of_user = bypasses_any(rules) and 0 or next_for(sent, policy, 1)
    set_part_gates(user, whole.lanes, part_gate(user, whole, now, of_user, least, sends > 0))
  end
  for lane in pairs(lanes) do
    if not gates[lane] and not (whole and whole.lanes[lane]) then gather('ZREM', '@gates:' .. lane, user) end
  end
  if holds then park(user, lanes, lines, since) end
  if #lines == 0 and not whole then
    if not closed then emptied[#emptied + 1] = lines_key(user) end
  else
    local slowest = pace(policy)
    for _, line in ipairs(lines) do slowest = math.max(slowest, pace(line.policy)) end
    if to_expect > 0 and redis.call('HSET', lines_key(user), '#pace', text(slowest)) == 1 then
      expect_all(lines, slowest)
    end
    if sends == 0 and #reply[4] == asked then reply[2] = reply[2] + 1 end
  end
end

for i = 1, #users, 4 do
  if room > 0 then
    visit(users[i], users[i + 1], users[i + 2], users[i + 3])
  else -- *pull* pushed the gate ahead: it is due still, and the user keeps the place that it gave
    gather('ZADD', '@gates:' .. users[i + 1], text(users[i + 2]), users[i])
  end
end
write_gathered()
if #emptied > 0 then redis.call('DEL', unpack(emptied)) end
write_projects(now)
note_due(earliest)
wake_for_gates()
redis.call('HINCRBY', '@stats', 'dispatched', #reply - 4)
if reply[2] > 0 then redis.call('HINCRBY', '@stats', 'looked', reply[2]) end
return reply
