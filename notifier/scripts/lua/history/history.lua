--! exports history
--! needs job_key number text
-- The history: what held a notification back is noted in its job's hash while it waits, and all of it becomes one
-- record of its user when it ends.
--   push_accepted  in a job's hash: µs at which it was accepted; only where a history is kept
--   push_held      in a job's hash: '<µs since it was accepted> <why> …', each until the next:
--     b the backlog before it   u<rule>, c<rule> a rule of the user, of the category   d a limit of a device
--     p<name> a route, h<name>=<who> a pause, quoted, see routes.lua   q quiet hours   m a mute   g a digest gathers
--     r a retry
--     t its own time, send_at
--     f a worker has it, and f=<answers> what became of that: '<route>,<status>,<ms>,<outcome>,<reason>;…'
--     s all of these together, see *fold*
--     A rule is as *rule_mark* of rules.lua has it, or '<limit>/<unit>' of the calendar.
--   @history:{user}:0, …:1  two lists of records, the newest last. Periods of `keep` ms go by turns to :0 and :1, and
--     each list expires when the period after its own ends. So a record costs one command, and lasts for `keep` at
--     least. A record: µs at which it ended, µs since it was accepted or '', outcome, category, push_held, worker,
--     version of the rates, a reason or the job that took its place, job id; with backlog breaks between.
local MAX_HELD, TRIM_EVERY = 500, 8
-- keep: ms; nil where there is no history. max: records of a user. by: worker and version, of who settles.
local history = {keep = nil, max = 0, by = '\n\n\n'}

-- fold: what held it back for the same reason becomes one, in the order of the first; answers are forgotten.
local function fold(held)
  local order, sums, last, since = {}, {}, nil, nil
  for at, why in held:gmatch('(%d+) (%S+)') do
    why = why:gsub('^f.*', 's')
    if last then sums[last] = sums[last] + at - since end
    if not sums[why] then sums[why], order[#order + 1] = 0, why end
    last, since = why, at
  end
  local at, folded = tonumber(held:match('^%d+') or 0), {}
  for _, why in ipairs(order) do
    folded[#folded + 1] = text(at) .. ' ' .. why
    at = at + sums[why]
  end
  folded[#folded + 1] = last and text(tonumber(since)) .. ' ' .. last or nil
  return table.concat(folded, ' ')
end

-- add: push_held as it is from µs `now` on. accepted, held: of the job's hash.
function history.add(accepted, held, now, why)
  local added = text(math.max(0, now - (number(accepted) or now))) .. ' ' .. why
  if not held then return added end
  return (#held > MAX_HELD and fold(held) or held) .. ' ' .. added
end

-- note: from now on this holds it back; what is noted already is not written again.
function history.note(id, accepted, held, now, why)
  if not accepted or held and held:match('%S+$') == why then return end
  redis.call('HSET', job_key(id), 'push_held', history.add(accepted, held, now, why))
end

-- write: the record of what ended. told: {user, category, accepted, held, handed}.
function history.write(now, id, outcome, detail, told)
  if history.now ~= now then
    local period = math.floor(now / 1000 / history.keep)
    history.now, history.stamp = now, text(now) .. '\n'
    history.turn, history.left = '}:' .. period % 2, (period + 2) * history.keep - math.floor(now / 1000)
  end
  local key = '@history:{' .. told.user .. history.turn
  local n = redis.call('RPUSH', key, history.stamp .. (told.accepted or '') .. '\n' .. outcome .. '\n' .. told.category
    .. '\n' .. (told.held or '') .. '\n' .. (told.handed or '') .. history.by .. detail .. '\n' .. id)
  if n == 1 then redis.call('PEXPIRE', key, text(history.left)) end
  if n > history.max and n % TRIM_EVERY == 0 then redis.call('LTRIM', key, -history.max, -1) end
end
