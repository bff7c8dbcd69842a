-- What stands before a script that takes something on for users, where there are several shards: do they live here? While
-- users are being moved, notifier:moves tells (see leave.lua): user -> '=' here, '>b' on the way to b, 'b' gone to b; and
-- under '' what is being done: 'listing' or 'listed', with ' all' behind it where all are to leave. The last of ARGV is
-- the users, JSON {user: whether the caller knows that it is to leave}; the script itself does not see it.
-- Returns, and nothing is done, {{'#moved', user, where it is or '' for where it is to be, …}} if some do not live here.
do
  local users = table.remove(ARGV)
  if redis.call('EXISTS', 'notifier:moves') == 1 then
    local doing, gone = redis.call('HGET', 'notifier:moves', '') or '', {'#moved'}
    for user, leaves in pairs(cjson.decode(users)) do
      local at = redis.call('HGET', 'notifier:moves', user)
      if not at and (leaves or doing:find(' all$')) then
        if doing:find('^listing') then redis.call('HSET', 'notifier:moves', user, '=')
        elseif doing ~= '' then at = '' end
      end
      if at and at ~= '=' then
        gone[#gone + 1] = user
        gone[#gone + 1] = at
      end
    end
    if #gone > 1 then return {gone} end
  end
end
