-- rq_run: keeps or closes the permit of a job that RQ runs, after *settle* has handed the job to RQ.
-- ARGV a RUN, see records.py
-- returns 1 if a set still had the permit; 0 if no rule counts it
--! first_write
--! needs cost_in date_sends ends history look_again now_us overall_key remember sent_key tally text
local now, ahead = now_us(ARGV[RUN.clock]), tonumber(ARGV[RUN.ahead_us])
local permit, user, category = ARGV[RUN.permit], ARGV[RUN.user], ARGV[RUN.category]
remember(user)

local found = 0
-- date: dates the permit in a set of sends, or removes it if `at` is nil. The set lives longer by as much.
local function date(sent, at)
  local stood = redis.call('ZSCORE', sent, permit)
  if not stood then return end
  found = 1
  local left = redis.call('PTTL', sent)
  date_sends(sent, permit, cost_in(sent, permit), at and text(at))
  local more = (at or 0) - math.max(now, tonumber(stood))
  if more > 0 and left > 0 then redis.call('PEXPIRE', sent, text(left + math.ceil(more / 1000))) end
end

local at = now + (ahead or 0)
if not ahead and ARGV[RUN.reached] == '0' then at = nil end
date(sent_key(user), at)
date(sent_key(user, category), at)
date(overall_key(category), at)
if ahead then return found end

local outcome = ARGV[RUN.outcome]
tally(outcome, now, category .. '|rq')
if ARGV[RUN.is_end] == '1' then
  history.by = '\n' .. ARGV[RUN.worker]:gsub('%c', ' ') .. '\n' .. ARGV[RUN.version] .. '\n'
  ends.read(ARGV[RUN.keep])
  ends.tell(now, ARGV[RUN.job_id], outcome, '', {user = user, category = category, handed = ARGV[RUN.handed],
    noted = ARGV[RUN.noted], meta = cjson.encode({user = user, category = category})})
end
look_again(now, user)
return found
