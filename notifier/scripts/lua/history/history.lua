--! exports history
--! needs job_key number text
-- The history: what held a notification back is noted in its job's hash while it waits, and all of it becomes one
-- record of its user when it ends.
--   push_history  in a job's hash, only where a history is kept: µs at which it was accepted, and what held it back,
--     each until the next: '<accepted> <µs since then> <why> …'. The why:
--     b the backlog before it   u<rule>, c<rule> a rule of the user, of the category   d a limit of a device
--     p<name> a route, h<name>=<who> a pause, quoted, see routes.lua   q quiet hours   m a mute   g a digest gathers
--     r a retry
--     t its own time, send_at   k no worker looked, though the rule let it go
--     f a worker has it, and f=<answers> what became of that: '<route>,<status>,<ms>,<outcome>,<reason>;…'
--     s all of these together, see *fold*
--     A rule is as *rule_mark* of rules.lua has it, or '<limit>/<unit>' of the calendar.
--   @history:{user}:0, …:1  two lists of records, the newest last. Periods of `keep` ms go by turns to :0 and :1, and
--     each list expires when the period after its own ends. So a record costs one command, and lasts for `keep` at
--     least. A record: µs at which it ended, push_history or '', outcome, category, worker, version of the rates, a
--     reason or the job that took its place, job id; with backlog breaks between.
local MAX_NOTED, TRIM_EVERY = 500, 8
-- keep: ms; nil where there is no history. max: records of a user. by: worker and version, of who settles.
local history = {keep = nil, max = 0, by = '\n\n\n'}

-- fold: what held it back for the same reason becomes one, in the order of the first; answers are forgotten.
local function fold(noted)
  local accepted, held = noted:match('^(%S*) ?(.*)$') -- anybody may have written there, and anything
  local order, sums, last, since = {}, {}, nil, nil
  for at, why in held:gmatch('(%d+) (%S+)') do
    why = why:gsub('^f.*', 's')
    if last then sums[last] = sums[last] + at - since end
    if not sums[why] then sums[why], order[#order + 1] = 0, why end
    last, since = why, at
  end
  local at, folded = tonumber(held:match('^%d+') or 0), {accepted}
  for _, why in ipairs(order) do
    folded[#folded + 1] = text(at) .. ' ' .. why
    at = at + sums[why]
  end
  folded[#folded + 1] = last and text(tonumber(since)) .. ' ' .. last or nil
  return table.concat(folded, ' ')
end

-- accepted_at: µs, or nil. noted: push_history of a job's hash, here and below; nil or false where it has none.
function history.accepted_at(noted) return noted and number(noted:match('^%S+')) end

-- was_held: whether anything held it back so far.
function history.was_held(noted) return noted and noted:find(' ', 1, true) end

-- add: push_history as it is from µs `now` on.
function history.add(noted, now, why)
  local since = math.max(0, now - (history.accepted_at(noted) or now))
  return (#noted > MAX_NOTED and fold(noted) or noted) .. ' ' .. text(since) .. ' ' .. why
end

-- note: from now on this holds it back; what is noted already is not written again.
function history.note(id, noted, now, why)
  if not noted or noted:match('%S+$') == why then return end
  redis.call('HSET', job_key(id), 'push_history', history.add(noted, now, why))
end

-- write: the record of what ended. told: {user, category, noted, handed}.
function history.write(now, id, outcome, detail, told)
  if history.now ~= now then
    local period = math.floor(now / 1000 / history.keep)
    history.now, history.stamp = now, text(now) .. '\n'
    history.turn, history.left = '}:' .. period % 2, (period + 2) * history.keep - math.floor(now / 1000)
  end
  local key = '@history:{' .. told.user .. history.turn
  local n = redis.call('RPUSH', key, history.stamp .. (told.noted or '') .. '\n' .. outcome .. '\n' .. told.category
    .. '\n' .. (told.handed or '') .. history.by .. detail .. '\n' .. id)
  if n == 1 then redis.call('PEXPIRE', key, text(history.left)) end
  if n > history.max and n % TRIM_EVERY == 0 then redis.call('LTRIM', key, -history.max, -1) end
end
