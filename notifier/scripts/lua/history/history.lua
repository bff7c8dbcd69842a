--! exports history
--! needs job_key number text
-- The history. While a notification waits, its job's hash notes the reasons that hold it back. When it ends, the notes
-- become one record of its user.
--   push_history  in a job's hash, if a history is kept: '<accepted> <µs since then> <reason> …': the µs at which it
--     was accepted, and each reason that held it back, until the next one. The reasons:
--     b the backlog before it   u<rule>, c<rule> a rule of the user, of the category   d a limit of a device
--     p<name> a route, h<name>=<who> a pause, quoted, see routes.lua   q quiet hours   m a mute   g a digest gathers
--     r a retry   t its own time, send_at   k no worker looked, although the rule let it go
--     f a worker has it; f=<answers> a worker had it, with '<route>,<status>,<ms>,<outcome>,<reason>;…'
--     s all times with a worker together, see *fold*
--     A rule is text of *rule_mark* in rules.lua, or '<limit>/<unit>' of a calendar window.
--   @history:{user}:0, …:1  two lists of records, the newest last. Periods of `keep` ms alternate between :0 and :1,
--     and a list expires when the period after its own ends. So a record costs one command, and lasts for `keep` at
--     least.
--     A record: µs at which it ended, push_history or '', outcome, category, worker, version of the rates, a reason or
--     the job that took its place, job id; with line breaks between.
local MAX_NOTED, TRIM_EVERY = 500, 8
-- keep: ms, or nil without a history. max: records of a user. by: name and version of the worker that settles.
local history = {keep = nil, max = 0, by = '\n\n\n'}

-- fold: adds up the times with the same reason, in the order in which the reasons came first. Forgets answers.
local function fold(noted)
  local accepted, held = noted:match('^(%S*) ?(.*)$') -- the field may hold anything: other programs write there
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

-- accepted_at: µs, or nil. noted, here and below: push_history of a job's hash; nil or false without one.
function history.accepted_at(noted) return noted and number(noted:match('^%S+')) end

-- was_held: whether a reason is noted.
function history.was_held(noted) return noted and noted:find(' ', 1, true) end

-- add: `noted` with the reason `why` from µs `now` on.
function history.add(noted, now, why)
  local since = math.max(0, now - (history.accepted_at(noted) or now))
  return (#noted > MAX_NOTED and fold(noted) or noted) .. ' ' .. text(since) .. ' ' .. why
end

-- note: writes to the job's hash that `why` holds it back from now on, unless it does already.
function history.note(id, noted, now, why)
  if not noted or noted:sub(-#why - 1) == ' ' .. why then return end
  redis.call('HSET', job_key(id), 'push_history', history.add(noted, now, why))
end

-- write: adds the record of a job that ended. told: {user, category, noted, handed}.
function history.write(now, id, outcome, detail, told)
  local ms = math.floor(now / 1000)
  local period = math.floor(ms / history.keep)
  local key = '@history:{' .. told.user .. '}:' .. period % 2
  local n = redis.call('RPUSH', key, text(now) .. '\n' .. (told.noted or '') .. '\n' .. outcome .. '\n' .. told.category
    .. '\n' .. (told.handed or '') .. history.by .. detail .. '\n' .. id)
  if n == 1 then redis.call('PEXPIRE', key, text((period + 2) * history.keep - ms)) end
  if n > history.max and n % TRIM_EVERY == 0 then redis.call('LTRIM', key, -history.max, -1) end
end
