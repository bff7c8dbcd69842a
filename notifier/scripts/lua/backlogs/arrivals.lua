--! exports HIGH goes_by_clock is_ascii is_text orders steering
-- Questions about each job that arrives.
local HIGH = 1125899906842624 -- 2^50: a high priority's order lies below every normal arrival's
local MAX_EXPIRES = 3155760000 -- a hundred years, in s
local clocked, some_users -- read once in a call: whether any rule goes by local time, or a user's preference does
-- goes_by_clock: whether the time since which a job of this user waits may matter.
local function goes_by_clock(user)
  if clocked == nil then
    clocked = redis.call('EXISTS', '@zones') == 1
    some_users = not clocked and redis.call('EXISTS', '@zones:users') == 1
  end
  return clocked or some_users and redis.call('HEXISTS', '@preferences', user) == 1
end

-- is_ascii: whether a text has only ASCII. A search for another byte is tried from each byte, and takes twice as long.
local function is_ascii(value) return value:find('^[\1-\127]*$') ~= nil end

-- is_text: whether a value is UTF-8, as JSON must be. cjson reads any bytes, but readers of our replies do not.
local function is_text(value)
  if is_ascii(value) then return true end
  local letters = {'[\194-\223][\128-\191]', '\224[\160-\191][\128-\191]',
    '[\225-\236\238\239][\128-\191][\128-\191]', '\237[\128-\159][\128-\191]', '\240[\144-\191][\128-\191][\128-\191]',
    '[\241-\243][\128-\191][\128-\191][\128-\191]',
    '\244[\128-\143][\128-\191][\128-\191]'}
  for _, letter in ipairs(letters) do value = value:gsub(letter, ' ') end
  return not value:find('[\128-\255]')
end

-- orders.next: the order of one more arrival. orders.expected: how many arrivals this call expects; unused numbers are
-- lost.
local orders = {expected = 1, left = 0}
function orders.next()
  if orders.left == 0 then
    orders.last, orders.left = redis.call('INCRBY', '@seq', orders.expected) - orders.expected, orders.expected
  end
  orders.last, orders.left = orders.last + 1, orders.left - 1
  return orders.last
end

-- The meta of most jobs of our producers. Decoding it as JSON takes three times as long.
local PLAIN = '^{"user":"([%w ._@:+-]+)","category":"([a-z0-9][a-z0-9_-]*)"}$'

-- steering: the meta of a job that is a notification, or nil. Also nil without a category: the called function's
-- arguments may have it, which a worker reads.
local function steering(text_of_meta)
  local user, category = string.match(text_of_meta or '', PLAIN)
  if user then return {user = user, category = category} end
  local ok, meta = pcall(cjson.decode, text_of_meta or '')
  if not ok or type(meta) ~= 'table' or type(meta.user) ~= 'string' or meta.user == '' then return nil end
  if not is_text(meta.user) or type(meta.zone) == 'string' and not is_text(meta.zone) then return nil end
  if type(meta.category) ~= 'string' or not string.match(meta.category, '^[a-z0-9][a-z0-9_-]*$') then return nil end
  local lasts = meta.expires_in
  if lasts ~= nil and lasts ~= cjson.null and not (type(lasts) == 'number' and math.abs(lasts) <= MAX_EXPIRES) then
    return nil -- also for NaN
  end
  return meta
end
