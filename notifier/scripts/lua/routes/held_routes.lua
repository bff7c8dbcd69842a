--! on_demand let_go_of_held
--! needs backlog_key change_hold CLAIM drop_hold job_key lane_shares lanes_of probe_at read_backlogs read_circuits
--! needs rests_key steering text waiting_key
-- Lets users go that wait for a route, see routes.lua, once the route works again or has room; lets probes go by routes
-- that do not work. look: of *pull*.
-- let_go: a user that waited for `of` is looked at now; the rest of a notification goes back to its place.
local function let_go(look, of, member, at)
  local id, lane, user = member:match('^j(.+)$'), member:match('^u(%S+) (.+)$')
  if id then
    local meta = steering(redis.call('HGET', job_key(id), 'meta'))
    if meta then redis.call('ZREM', rests_key(backlog_key(meta.user, meta.category), of), id) end
    if redis.call('ZREM', '@later', id) == 1 then look.place(id) end
    return
  end
  if lanes_of(read_backlogs(user))[lane] then look.look_at(user, lane, look.due, at) end
end

-- how_many: how many of those that wait for a route may go now.
local function how_many(look, hold)
  local now, most = look.now, look.most
  if hold.state == 'closing' then return most end
  if hold.state == 'paused' then return 0 end
  if hold.state == 'busy' then return hold.free or 0 end
  if probe_at(hold, look.worker, now) > now then return 0 end
  return hold.state == 'full' and math.min(most, tonumber(hold.room)) or 1
end

-- share_rooms: divides the room that this worker has on each busy route among the lanes that wait for it.
local function share_rooms(look, holds, names)
  local rooms, rank, waiting = look.rooms or {}, look.rank, {}
  for _, of in ipairs(names) do
    local hold = holds[of]
    if hold.state == 'busy' and rank[hold.lane] then
      waiting[hold.route] = waiting[hold.route] or {}
      waiting[hold.route][rank[hold.lane]] = of
    end
  end
  for route, of_lane in pairs(waiting) do
    local n_of_lane, room = {}, math.min(look.most, rooms[route] or look.most)
    for i = 1, #look.lanes do n_of_lane[i] = of_lane[i] and redis.call('ZCARD', waiting_key(of_lane[i])) or 0 end
    for i, n in ipairs(room > 0 and lane_shares(n_of_lane, room) or {}) do
      if of_lane[i] then holds[of_lane[i]].free = n end
    end
  end
end

local UNNEEDED = 600000000 -- µs
-- is_unneeded: whether nobody has come for so long who could be the probe: all that waited was cancelled, or expired.
local function is_unneeded(of, hold, now)
  return hold.state == 'open' and hold.probe == '1' and tonumber(hold['until']) + UNNEEDED <= now
    and redis.call('EXISTS', waiting_key(of)) == 0
end

local MAX_PASSED = 10000
-- first_served: the place, from 0, of the first that waits for `of` in a lane of the caller's, or 0. Another worker
-- would send a probe of another lane, and that worker may be the one that had the trouble.
local function first_served(look, of)
  for from = 0, MAX_PASSED, 100 do
    local some = redis.call('ZRANGE', waiting_key(of), from, from + 99)
    for i, member in ipairs(some) do
      local lane = member:match('^u(%S+) ')
      if not lane or look.rank[lane] then return from + i - 1 end
    end
    if #some < 100 then break end
  end
  return 0
end

-- let_go_of_held: lets as many go as may go now. Returns the routes whose circuit is open, and the µs at which the next
-- may go.
local function let_go_of_held(look)
  local holds, names = read_circuits()
  local now, shut, next_due = look.now, {}, math.huge
  if holds then share_rooms(look, holds, names) end
  for _, of in ipairs(names) do
    local hold = holds[of]
    local is_over = hold.state == 'paused' and tonumber(hold['until']) <= now
    if is_over or is_unneeded(of, hold, now) then change_hold(of, hold, 'state', 'closing') end
    local n = how_many(look, hold)
    if n > 0 then
      local at = hold.state == 'open' and first_served(look, of) or 0
      local waiting = redis.call('ZRANGE', waiting_key(of), at, at + n - 1, 'WITHSCORES')
      if hold.state == 'open' and (#waiting > 0 or hold.probe ~= '1') then -- else `until` stays, for *is_unneeded*
        local again = text(now + CLAIM)
        change_hold(of, hold, 'probe', '1', 'until', again, 'others', again, 'first', '')
      end
      if #waiting > 0 then
        redis.call('ZREMRANGEBYRANK', waiting_key(of), at, at + n - 1)
        if hold.category then -- *decide* lets them go in turn; the hold is dropped once nobody waits for it
          change_hold(of, hold, 'turn', text(math.max(1, math.floor(2 * hold.room / #waiting))))
          n = 0
        end
      end
      local keeps = hold.state == 'busy' or hold.category
      for i = 1, #waiting, 2 do let_go(look, of, waiting[i], keeps and math.min(waiting[i + 1], now) or now) end
    end
    local left = redis.call('ZCARD', waiting_key(of))
    if hold.state == 'open' then shut[#shut + 1] = of
    elseif left == 0 and (n > 0 or hold.state == 'busy') then drop_hold(of) end
    -- A busy route is looked at by the worker that gets room when a send has ended.
    if hold.state ~= 'busy' and (left > 0 or hold.state == 'open' and hold.probe ~= '1') then
      next_due = math.min(next_due, hold.state == 'closing' and now or probe_at(hold, look.worker, now))
    end
  end
  return shut, next_due
end
