-- audit_type: judges the types of keys. A key of a wrong type holds nothing of ours: another program wrote it.
-- ARGV 1 '1' to remove keys of a wrong type  2.. for each key: its name, its right types, such as 'hash or set'
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
