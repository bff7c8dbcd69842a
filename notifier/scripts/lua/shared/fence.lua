-- What stands before a script that takes something on for users, where there are several shards: do they live here?
-- While users are being moved, @moves tells: user -> '=' here, '>b' on the way to b, 'b' gone to b, '' taken
-- on where it is to be, as nobody knew it here; and under '' what is being done: 'listing' or 'listed', with ' all'
-- behind it where all are to leave. The last of ARGV is the users, JSON {user: whether the caller knows that it is to
-- leave}; the script itself does not see it. Returns, and nothing is done, {{'#moved', user, the above, …}} if some
-- do not live here.
do
  local users = table.remove(ARGV)
  if redis.call('EXISTS', '@moves') == 1 then
    local doing, gone = redis.call('HGET', '@moves', '') or '', {'#moved'}
    local all = doing:find(' all$')
    for user, leaves in pairs(cjson.decode(users)) do
      local at, goes = redis.call('HGET', '@moves', user), leaves or all
      if at == '' and not goes then -- of an earlier move; it has come to live here since
        redis.call('HDEL', '@moves', user)
        at = false
      end
      if not at and goes and doing ~= '' then
        at = doing:find('^listing') and '=' or ''
        redis.call('HSET', '@moves', user, at)
      end
      if at and at ~= '=' then
        gone[#gone + 1] = user
        gone[#gone + 1] = at
      end
    end
    if #gone > 1 then return {gone} end
  end
end
