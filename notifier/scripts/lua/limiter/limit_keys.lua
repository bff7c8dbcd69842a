--! on_demand ask_keys
--! needs keep opens places read_sends room take write_sends
local pack, unpack = struct.pack, struct.unpack
local TAKES = {t = true, a = true}

-- ask_key: the reply for one key, see *limit*; or nil, and the moment that the dates of its plan do not reach.
local function ask_key(how, key, id, plan, now, timeout, read, least)
  local s, place = read_sends(key, read), nil
  s.least = least
  local cost, gap, kept, capacity, every, windows = unpack('>I8I8I8I8I8I8', plan)
  local at, rule = opens(s, plan, now, cost, gap, capacity, every, windows)
  if not at then return nil, rule end
  if how == 'a' then at, rule = 0, -1 end -- the rules never hold an add back: only *room* needs them
  if at > now and s.marks ~= '' and rule ~= -3 then
    place = places.for_plan(s, plan, at, now)
    at = place or at
  end
  if at < now then at = now end
  if at - now > timeout then
    if how ~= 'l' and kept >= s.horizon and at > s.till then -- the sends that refuse it are needed until then
      keep(s, kept, now, at - kept)
      write_sends(s)
    end
    return at - now, rule, -1, -1, -1
  end
  if TAKES[how] then take(s, id, at, now, place, cost, kept, capacity, every) end
  return at - now, rule, room(s, plan, at, now, windows)
end

-- ask_keys: asks KEYS from `begin` on, see *limit*. read: field h of the only key, if it has been read. If usage is
-- counted: least: a renewed key lasts at least this many ms; note: a function that gets the outcome of each key.
local function ask_keys(begin, now, timeout, mode, read, least, note)
  local reply, refused
  local function answer(how)
    reply, refused = {pack('>i8', now)}, false
    local a = 2
    for k = begin, #KEYS do
      local id, plan = ARGV[a], ARGV[a + 1]
      local left, rule, remaining, more, narrowest = ask_key(how, KEYS[k], id, plan, now, timeout, read, least)
      if not left then
        reply[#reply + 1] = pack('>i8', rule)
        return false
      end
      refused = refused or left > timeout
      if note and TAKES[how] then note(KEYS[k], plan, left <= timeout) end
      reply[#reply + 1] = pack('>i8i2i8i8i2', left, rule, remaining, more, narrowest)
      a = a + 2
    end
    return true
  end
  if mode ~= 'e' then
    answer(mode)
  elseif answer('e') then
    if not refused then answer('t') end
    for k = begin, note and refused and #KEYS or 0 do -- nothing is taken: only held keys count as used
      if unpack('>i8', reply[k - begin + 2]) > timeout then note(KEYS[k], ARGV[2 * (k - begin) + 3], false) end
    end
  end
  return table.concat(reply)
end
