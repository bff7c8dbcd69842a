-- enqueue: accepts notifications as RQ jobs, each exactly once however often the call is repeated.
-- ARGV 1 clock  2 dedupe_for ms  3 job timeout s  4 now as RQ writes it (ISO 8601)
--      5 how many may wait in all, or ''  6 keep_failed s, see ends.lua
--      7.. for each: job id, lane, data, meta, µs until it expires or '', µs of its own time or '',
--          dedupe key (with its user) or '', targets (see targets.lua) or '', and where a limit holds: how many of the
--          user's may wait (0: any number), a blank, and what to do beyond: reject, drop_oldest or collapse; or '';
--          category, or ''; its user where it has tags, or ''
-- returns for each the job id: the one given, or that of an earlier notification with the same dedupe key; or of one
--         that is refused '!user' or '!all', how many wait, and how many may, parted by blanks
--! include clock keys history idle_leaders candidate ends collapse leaving enter_backlog behind minute tagged
local now, dedupe_for, timeout, stamp = now_us(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
local in_all, keep = tonumber(ARGV[5]), ends.read(ARGV[6])
local reply, seen, numbers, MAX_OVER, now_text = {}, {}, {}, 2, text(now)
local recording = redis.call('EXISTS', '@trace') == 1

--! include overflow

-- make_room: where a limit holds. Returns 'collapse' for what is to take the place of one that waits, else 'queue'; and
-- the user for whom it is counted. Or nil and the refusal. at: its own time; then it takes nobody's place.
local function make_room(meta, limit, at)
  local of_user, overflow = limit:match('^(%d+) (.+)$')
  local read = cjson.decode(meta)
  local user, category, same = read.user, read.category or 'default', nil
  of_user = tonumber(of_user)
  local which, waiting, most = beyond(user, of_user)
  if which then
    if overflow == 'collapse' and read.collapse_id and not at then
      same = same_waiting(user, category, read.collapse_id)
    end
    if not same and not (overflow == 'drop_oldest' and drop_oldest(user, category)) then
      tally(user, 'refused')
      return nil, '!' .. which .. ' ' .. waiting .. ' ' .. most
    end
  end
  return same and 'collapse' or 'queue', of_user > 0 and user
end

local function join(id, user, category, collapse_id, order)
  local expected, needs_recheck
  local old = same_waiting(user, category, collapse_id)
  order, expected, needs_recheck = supersede(now, user, category, old, id, order, keep)
  note_candidate(user, category, collapse_id, id)
  return order, expected, needs_recheck
end

-- take_place: the job goes at once to the place of the one that waits under its collapse id.
local function take_place(id)
  local _, user, lane, is_new = enter_backlog(now, id, join)
  if is_new then redis.call('ZADD', '@gates:' .. lane, 'LT', text(now), user) end
  note_due(now, lane)
end

-- note_arriving: by the job's own time, so that those of next week do not hide from *forget_gone* who is gone.
local function note_arriving(user, id, key, at)
  redis.call('HSET', key, 'push_arriving', 1)
  redis.call('ZADD', arriving_key(user), at or now, id)
  redis.call('EXPIRE', arriving_key(user), 2592000)
end

local lanes_now = {}
-- lane_of: the lane in whose queue the next of a category is to stand, which is to go in `lane`; see behind.lua.
local function lane_of(category, lane)
  local before = lanes_now[category] or redis.call('HGET', '@lanes', category)
  if before ~= lane then
    if before and redis.call('HEXISTS', '@behind', category) == 1 then return before end
    local left = before and redis.call('LLEN', '@rq:queue:' .. before) or 0
    if left > 0 then note_behind(category, before, left, redis.call('LINDEX', '@rq:queue:' .. before, -1)) end
    redis.call('HSET', '@lanes', category, lane)
  end
  lanes_now[category] = lane
  return lane
end

-- own_time: the µs at which a job goes to its backlog that was accepted for `at`. Those for the same moment come one µs
-- after the other, in the order in which they were accepted: `later` has no other order for them.
local function own_time(at)
  local same, moment = '@same_time', text(at)
  local free = math.max(at, tonumber(redis.call('ZSCORE', same, moment) or 0))
  redis.call('ZADD', same, text(free + 1), moment)
  local over = redis.call('ZRANGEBYSCORE', same, '-inf', text(now), 'LIMIT', 0, MAX_OVER)
  if #over > 0 then redis.call('ZREM', same, unpack(over)) end
  return free
end

local UNSENT = {cancelled = true, expired = true, dropped = true}

-- earlier_of: the notification that was accepted under this dedupe key, or nil. It may be this very id, where the same
-- call comes again. What ended before it was sent does not stand in the way of another.
local function earlier_of(id, dedupe)
  local earlier = dedupe ~= '' and redis.call('GET', '@dedupe:' .. dedupe)
  if not earlier then return nil end
  if earlier == id or not UNSENT[redis.call('HGET', job_key(earlier), 'push_outcome')] then return earlier end
end

-- write_job: the job's hash, as RQ writes it, and what is ours in it. at: its own time, or nil.
local function write_job(key, lane, at, data, meta, targets, tagged, expires_in)
  local fields = {'created_at', stamp, 'enqueued_at', stamp, 'origin', lane, 'data', data, 'meta', meta,
    'description', 'notifier.deliver', 'timeout', timeout, 'status', at and 'scheduled' or 'queued'}
  local function put(name, value) fields[#fields + 1], fields[#fields + 2] = name, value end
  if targets ~= '' then put('push_targets', targets) end
  if tagged ~= '' then put('push_tagged', '1') end
  if expires_in ~= '' then put('push_deadline', (at or now) + tonumber(expires_in)) end
  if history.keep then
    put('push_accepted', now_text)
    if at then put('push_held', '0 t') end
  end
  redis.call('HSET', key, unpack(fields))
end

-- send_on: the job goes to where it waits: another's place, its own time, or the end of its lane's queue.
local function send_on(id, lane, at, how)
  if how == 'collapse' then return take_place(id) end
  if not at then return redis.call('RPUSH', '@rq:queue:' .. lane, id) end
  local goes = own_time(at)
  redis.call('ZADD', '@rq:scheduled:' .. lane, seconds(goes), id)
  redis.call('ZADD', '@later', text(goes), id)
  note_due(goes)
end

-- count_accepted: in the totals, in this minute's numbers, and in what `notifier preview` plays again.
local function count_accepted(lane, category, at, meta, expires_in)
  if not seen[lane] then
    seen[lane] = true
    redis.call('SADD', '@rq:queues', '@rq:queue:' .. lane)
  end
  redis.call('HINCRBY', '@stats', 'accepted', '1')
  local field = 'a|' .. (category == '' and 'default' or category)
  numbers[field] = (numbers[field] or 0) + 1
  if recording then redis.call('XADD', '@trace', '*', 'at', at or now, 'meta', meta, 'expires', expires_in) end
end

local function accept(id, lane, data, meta, expires_in, send_at, dedupe, targets, limit, category, tagged)
  local earlier = earlier_of(id, dedupe)
  if earlier then return earlier end
  local key = job_key(id)
  -- The producer's connection may have broken between the call and the reply: this is the same call again.
  local again = redis.call('EXISTS', key) == 1 or redis.call('ZSCORE', '@delivered', id)
  local at, how, counted = tonumber(send_at), 'queue', nil
  if at and at <= now then at = nil end
  if limit ~= '' and not again then
    how, counted = make_room(meta, limit, at)
    if not how then return counted end
  end
  if dedupe ~= '' then redis.call('SET', '@dedupe:' .. dedupe, id, 'PX', dedupe_for) end
  if again then return id end
  if category ~= '' and how == 'queue' and not at then lane = lane_of(category, lane) end
  write_job(key, lane, at, data, meta, targets, tagged, expires_in)
  if tagged ~= '' then note_tagged(tagged, id, at or now, now) end
  send_on(id, lane, at, how)
  if how == 'queue' then
    if counted then note_arriving(counted, id, key, at) end
    if waiting_in_all then waiting_in_all = waiting_in_all + 1 end
  end
  count_accepted(lane, category, at, meta, expires_in)
  return id
end

for i = 7, #ARGV, 11 do reply[#reply + 1] = accept(unpack(ARGV, i, i + 10)) end
add_to_minute(now, numbers)
return reply
