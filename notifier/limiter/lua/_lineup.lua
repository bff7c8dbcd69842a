local HIGH = 1125899906842624 -- 2^50: a high priority's order lies below every normal arrival's

local MOST_EXPIRES = 3155760000 -- a hundred years, in s
local RANK = {urgent = 1, default = 2, bulk = 3} -- for all workers, whichever lanes each of them serves

-- open_line: makes sure that the line of `category` is known, in the more urgent of its lane and `lane`. Returns the
-- line's lane, and whether it is new there: then its user is to be looked at now, because the line's rules may admit
-- what the user's gate does not know of.
local function open_line(user, category, lane)
  local lines = lines_key(user)
  local standing = redis.call('HGET', lines, category)
  if standing and (RANK[standing] or 99) <= (RANK[lane] or 99) then return standing, false end
  redis.call('HSET', lines, category, lane)
  if not standing then return lane, true end
  -- Who looks at the user sets all the gates again; one of a lane that all lines have left would wake in vain.
  for _, other in ipairs(redis.call('HVALS', lines)) do
    if other == standing then return lane, true end
  end
  redis.call('ZREM', 'notifier:gates:' .. standing, user)
  return lane, true
end

local held -- looked up once in a call
local function routes_are_held()
  if held == nil then held = redis.call('EXISTS', 'notifier:routes') == 1 end
  return held
end

local clocked -- as above: whether a rule goes by the clock
local function goes_by_clock()
  if clocked == nil then clocked = redis.call('EXISTS', 'notifier:zones') == 1 end
  return clocked
end

local UTF8 = {'[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]', '[\225-\236\238\239][\128-\191][\128-\191]',
  '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]', '[\241-\243][\128-\191][\128-\191][\128-\191]',
  '\244[\128-\143][\128-\191][\128-\191]'}

-- is_text: whether it is UTF-8, as JSON must be: cjson reads anything, and who reads a reply of ours does not.
local function is_text(value)
  if not value:find('[\128-\255]') then return true end
  for _, letter in ipairs(UTF8) do value = value:gsub(letter, ' ') end
  return not value:find('[\128-\255]')
end

-- first_time: what is done once for a job. Returns its order, and its deadline in µs, which a producer without our
-- library cannot give: it cannot ask Redis for the time.
local function first_time(now, key, meta, deadline, outcome)
  local order = redis.call('INCR', 'notifier:seq')
  if outcome then -- it had failed, and somebody requeued it: it starts afresh and no longer fades away
    redis.call('HDEL', key, 'push_outcome', 'push_attempts', 'push_count', 'push_gather')
    redis.call('PERSIST', key)
  end
  if type(meta.expires_in) == 'number' and not deadline then
    deadline = text(now + math.floor(meta.expires_in * 1000000))
    redis.call('HSET', key, 'push_deadline', deadline)
  end
  if type(meta.zone) == 'string' then redis.call('HSET', key, 'push_zone', meta.zone) end
  if goes_by_clock() then redis.call('HSET', key, 'push_since', text(now)) end
  return text(meta.priority == 'high' and order - HIGH or order), deadline
end

-- steering: what a job's meta tells of a notification, or nil where it is plain JSON of none. Its category is filled in.
local function steering(text_of_meta)
  local ok, meta = pcall(cjson.decode, text_of_meta or '')
  if not ok or type(meta) ~= 'table' or type(meta.user) ~= 'string' or meta.user == '' then return nil end
  if not is_text(meta.user) or type(meta.zone) == 'string' and not is_text(meta.zone) then return nil end
  meta.category = meta.category or 'default'
  if type(meta.category) ~= 'string' or not string.match(meta.category, '^[a-z0-9][a-z0-9_-]*$') then return nil end
  if type(meta.expires_in) == 'number' and not (meta.expires_in <= MOST_EXPIRES) then return nil end -- NaN is not either
  return meta
end

-- is_unknown: whether its category is to be taken for 'default'. One in which the user still has a line was known before.
local function is_unknown(meta, known)
  return known[meta.category] == nil and meta.category ~= 'default'
    and redis.call('HEXISTS', lines_key(meta.user), meta.category) == 0
end

-- line_up: puts a job at its place in its user's line, from wherever it came: a queue, `later`, a dead worker.
-- Doing it twice changes nothing. Returns 'lined'; 'stock' for a job whose meta (plain JSON) names no user and
-- category; or nil where nothing is to be done (deleted, cancelled, or in flight under a lease). After 'lined' also
-- the user, the line's lane, and whether the line, or a head of which the gate knows nothing, is new: the caller looks
-- at the user, or sets the gate. join: what *pull* does with a newcomer, which may give it another's place. known: the
-- configured categories, where they are known: one of another category is 'stock' until its meta says 'default'.
local function line_up(now, id, join, known)
  local key = job_key(id)
  local job = redis.call('HMGET', key, 'origin', 'meta', 'push_order', 'push_permit', 'status', 'push_deadline',
    'push_outcome', 'push_arriving')
  if not job[1] or job[4] or job[5] == 'canceled' then return nil end
  local meta = steering(job[2])
  if not meta or known and not job[3] and is_unknown(meta, known) then return 'stock' end
  local user, origin, category = meta.user, job[1], meta.category
  local order, deadline, expected = job[3], job[6], nil
  -- unlike: it may stand before a head that waits for what it need not: a digest that gathers, a device.
  local leaves, unlike = is_leaving(user), order or nil
  if not order then
    order, deadline = first_time(now, key, meta, job[6], job[7])
    if job[8] then
      redis.call('ZREM', arriving_key(user), id)
      redis.call('HDEL', key, 'push_arriving')
    end
    if join and not leaves then order, expected, unlike = join(id, user, category, meta.collapse_id, order) end
    if unlike == nil then unlike = tonumber(order) < 0 end
  end
  if leaves then
    put_aside(now, id, user, category, origin, order)
    return nil
  end
  local lane, fresh = open_line(user, category, origin)
  if fresh then expected = seconds(now)
  elseif not expected then
    local gate = redis.call('ZSCORE', 'notifier:gates:' .. lane, user) or now
    local step = redis.call('HGET', lines_key(user), '#pace') or 0
    expected = seconds(math.max(now, gate + step * redis.call('ZCARD', line_key(user, category))))
  end
  local line = line_key(user, category)
  redis.call('ZADD', line, order, id)
  -- The user may be parked for what the head before it needs, or wait by the clock of another zone.
  unlike = not fresh and (unlike or routes_are_held() or goes_by_clock())
  if not fresh and (unlike or deadline) and redis.call('ZRANK', line, id) == 0 then
    if unlike then fresh = true
    else -- A head that the gate does not know of may expire before the gate opens.
      local ends = math.max(now, tonumber(deadline))
      redis.call('ZADD', 'notifier:gates:' .. lane, 'LT', text(ends), user)
      alarm(ends, lane)
    end
  end
  redis.call('HSET', key, 'push_order', order, 'status', 'scheduled')
  redis.call('ZADD', 'rq:scheduled:' .. origin, expected, id)
  return 'lined', user, lane, fresh
end
