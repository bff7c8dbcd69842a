-- renew: keeps jobs in flight that a worker sent and that were not answered, or gives them up as orphans.
-- ARGV 1 clock  2 lease µs; 0 leaves the jobs to the next worker that looks  3 the claimant, see claims.lua
--      4.. a FLIGHT of records.py for each job; with a lease of 0 its devices' answers are noted
-- returns for each job 1, or 0 if it is no longer in flight under this permit and nothing was changed
--! first_write
--! needs claim_key counted_of device_key job_key keep_claim mark_orphan note_due now_us stay_in_flight targets_of text
--! needs write_lasting
local now, lease, claimant = now_us(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local until_text, reply, kept = text(now + lease), {}, {}

-- close_answered: dates the sends to devices that have answered at now, as later workers count only the other devices.
local function close_answered(targets, before, answered, permit)
  local left = {}
  for _, target in ipairs(targets_of(targets, answered, nil)) do left[target.device] = true end
  for _, target in ipairs(targets_of(targets, before, nil)) do
    if not left[target.device] then redis.call('ZADD', device_key(target.device), 'XX', text(now), permit) end
  end
end

local function renew(at)
  local id, permit = ARGV[at + FLIGHT.id], ARGV[at + FLIGHT.permit]
  local user, category, answered = ARGV[at + FLIGHT.user], ARGV[at + FLIGHT.category], ARGV[at + FLIGHT.answered]
  local holder, origin, targets, before, counted = unpack(redis.call('HMGET', job_key(id), 'push_permit', 'origin',
    'push_targets', 'push_answered', 'push_counted'))
  local ends = redis.call('ZSCORE', '@leases', id)
  if not ends or origin and holder ~= permit then return 0 end -- without its hash it was deleted in flight
  counted = counted_of(permit, counted)
  if lease == 0 then
    if origin then
      mark_orphan(id, user, category)
      if answered ~= '' then
        redis.call('HSET', job_key(id), 'push_answered', answered)
        if targets and counted.devices then close_answered(targets, before, answered, permit) end
      end
    end
    redis.call('ZADD', '@leases', until_text, id)
    note_due(now)
    return 1
  end
  -- A lease that was over may have lost its permit and its claim as well: the user stays closed for this job.
  if origin and tonumber(ends) <= now then mark_orphan(id, user, category) end
  stay_in_flight(id, permit, counted, user, category, targets, before, tonumber(ends), now + lease, until_text)
  kept[claim_key(user, category)] = true
  return 1
end

for at = 3, #ARGV - 1, FLIGHT.n do reply[#reply + 1] = renew(at) end
for key in pairs(kept) do keep_claim(key, claimant, lease, until_text) end
write_lasting()
return reply
