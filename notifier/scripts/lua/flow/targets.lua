--! on_demand device_key needs_of plan_of targets_of routes_of
-- The devices of a job. Its push_targets is text, such as '- apns:n fcm:c|<device> <device>': the notification's own
-- app or '-', each device's platform and kind, and behind '|' the devices in the same order. The first part is the same
-- for most jobs, so a call parses it once.
--   kind    n, b (a background push) or c (collapsible); for a browser with its push service, 'webpush:n@<host>', as
--           each service is a route with a circuit of its own: 'webpush@<host>'
--   device  a digest, so that no key has a token
local function device_key(device) return '@device:' .. device end

-- needs_of: the routes of these devices, {route, platform, by, n: how many}.
local function needs_of(targets)
  local needs, by_route = {}, {}
  for _, target in ipairs(targets) do
    local need = by_route[target.route]
    if not need then
      need = {route = target.route, by = target.by, platform = target.platform, n = 0}
      by_route[target.route], needs[#needs + 1] = need, need
    end
    need.n = need.n + 1
  end
  return needs
end

local plans = {}
-- plan_of: the first part of a job's targets, for a category with this app. Returns {of: array of {platform, kind,
-- route, by}, needs: of *needs_of*, limited: whether one is b or c}.
local function plan_of(targets, app)
  local sign = string.match(targets, '^[^|]*')
  local key = (app or '') .. ' ' .. sign
  if plans[key] then return plans[key] end
  local plan = {of = {}, limited = false}
  local own, rest = string.match(sign, '^(%S+)(.*)$')
  if own and own ~= '-' then app = own end
  for platform, kind, service in string.gmatch(rest or '', '(%w+):(%a)(%S*)') do
    local by = app and platform .. '/' .. app or platform
    local route = by .. service
    plan.of[#plan.of + 1] = {platform = platform, kind = kind, route = route, by = by}
    plan.limited = plan.limited or kind ~= 'n'
  end
  plan.needs = needs_of(plan.of)
  plans[key] = plan
  return plan
end

-- targets_of: the devices without a final answer, an array of {platform, kind, route, by, device}.
local function targets_of(targets, answered, app)
  local ok, done = pcall(cjson.decode, answered or '')
  local plan = plan_of(targets, app)
  if not ok or type(done) ~= 'table' then done = nil end
  local found, n = {}, 0
  for device in string.gmatch(string.match(targets, '|(.*)$') or '', '%S+') do
    local of = plan.of[n + 1]
    if of and not (done and done[tostring(n)]) then
      found[#found + 1] = {platform = of.platform, kind = of.kind, route = of.route, by = of.by, device = device}
    end
    n = n + 1
  end
  return found
end

local function routes_of(targets)
  local names = {}
  for i, target in ipairs(targets) do names[i] = target.route end
  return names
end
