-- forget_candidate: the job is none any more; see collapse.lua. collapse_id: its push_collapse.
local function forget_candidate(user, category, id, collapse_id)
  local key = collapse_key(user, category)
  if redis.call('HGET', key, collapse_id) == id then redis.call('HDEL', key, collapse_id) end
  redis.call('HDEL', job_key(id), 'push_collapse')
end
