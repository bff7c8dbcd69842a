-- The keyspace. RQ's keys (rq:*) are RQ's own; a user's keys share the hash tag {user}.
--   notifier:line:{user}:<category>  zset job id -> order      the user's waiting notifications of one category
--   notifier:lines:{user}            hash category -> lane     the non-empty lines; #pace, #turn, orphans, … too
--   notifier:sent:{user}[:<category>] zset permit -> µs        see rules.lua
--   notifier:counts:{user}[:<category>], notifier:burst:{user}[:<category>], notifier:counting: see counts.lua
--   and burst.lua
--   notifier:collapse:{user}:<category> hash collapse id -> job id   newcomers that wait in the line, see collapse.lua
--   notifier:arriving:{user}         zset job id -> µs         under max_waiting, who has not come to a line yet
--   notifier:claim:{user}:<category> string                   who has heads of the line in flight, see claims.lua
--   notifier:gates:<lane>            zset user -> µs           when to look at the user's lines again
--   notifier:routes, notifier:route:<name>, notifier:parked:<name>: what is held, and who waits for it, see routes.lua
--   notifier:rests:{user}:<category> <route>                   what waits for it of a line, see routes.lua
--   notifier:device:…, notifier:project:…                      the providers' own limits, see limits.lua
--   notifier:zones                   hash zone -> JSON          what clocks read, see zones.lua
--   notifier:later                   zset job id -> µs         jobs that wait for a time of their own
--   notifier:expiring                zset job id -> µs         when what stands behind the head of a line expires
--   notifier:lanes, notifier:behind, notifier:behind:<category>: a category whose lane has changed, see behind.lua
--   notifier:same_time               zset µs -> µs             which moment of `later` is free beside one that is taken
--   notifier:leases                  zset job id -> µs         when the worker that holds the job is taken for dead
--   notifier:seq                     counter                   arrivals and permits
--   notifier:delivered               zset job id -> µs         compact records, kept for keep_delivered
--   notifier:feedback                stream                    dead tokens, kept for keep_feedback
--   notifier:events                  stream                    how each ended, kept for events.keep, see end.lua
--   notifier:trace                   stream                    what is accepted, while somebody records it
--   notifier:usage:{user}            hash                      totals by outcome, first and last time seen
--   notifier:stats                   hash                      totals of all users
--   notifier:minute:<minute>         hash                      the numbers of a minute, kept for 3 days, see minute.lua
--   notifier:leaders, notifier:leader:<lanes>, notifier:wake:<lanes>, notifier:handover:<lanes>: see alarm.lua
--   notifier:moves, notifier:away:{user}, notifier:arrived:<shard>: users on their way between shards, see fence.lua
--   notifier:token:<name>            hash                      a provider's token that all workers share, see token.lua
-- In a job's hash, beside RQ's fields: push_order (its place in the line), push_permit (set while it is in
-- flight: the fence), push_begun (the permit under which a suspect was begun), push_deadline (µs), push_attempts,
-- push_crashes, push_refusals (how often it was refused without an attempt being spent), push_zone and push_since (see
-- zones.lua), push_answered, push_outcome, push_targets (see targets.lua),
-- push_collapse (the id under which it stands in notifier:collapse), push_count (how many it stands for), push_by
-- (which job superseded it), push_reason (why it was dropped), push_arriving (it stands in notifier:arriving),
-- push_read (its meta told nothing, and a worker has read its data), push_gather (until when a digest gathers, µs),
-- push_orphan (see orphans.lua).
-- A background push that waits for its device stands behind the alerts of its line: its order is so much higher.
local LOWERED = 4503599627370496 -- 2^52: behind all arrivals
-- is_background: whether a job's push_targets (see targets.lua) hold one.
local function is_background(targets) return targets and string.find(targets, ':b[ |]') ~= nil end

local function line_key(user, category) return 'notifier:line:{' .. user .. '}:' .. category end
local function lines_key(user) return 'notifier:lines:{' .. user .. '}' end
local function sent_key(user, category)
  if category then return 'notifier:sent:{' .. user .. '}:' .. category end
  return 'notifier:sent:{' .. user .. '}'
end
local function collapse_key(user, category) return 'notifier:collapse:{' .. user .. '}:' .. category end
local function arriving_key(user) return 'notifier:arriving:{' .. user .. '}' end
local function claim_key(user, category) return 'notifier:claim:{' .. user .. '}:' .. category end
local function job_key(id) return 'rq:job:' .. id end
