-- audit_type: judges the types of keys: nothing of ours can be in one of another type, so something else wrote it.
-- ARGV 1 '1' to remove those of a wrong type  2.. for each: the key, its types, such as 'hash or set'
-- returns {finding, …} (see audit.lua)
--! needs finding findings
for i = 2, #ARGV, 2 do
  local key, right, is = ARGV[i], ARGV[i + 1], redis.call('TYPE', ARGV[i]).ok
  if is ~= 'none' and not (' ' .. right .. ' '):find(' ' .. is .. ' ', 1, true) then
    local gone = ARGV[1] == '1' and redis.call('DEL', key) and 'removed'
    finding('key ' .. key, 'is a ' .. is, 'a ' .. right .. ', or nothing', gone)
  end
end
return findings
