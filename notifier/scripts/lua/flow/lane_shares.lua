--! exports lane_shares least_share
-- How much of a worker's room each lane gets. (Which of one user's lanes goes first: *sort_backlogs* of select.lua.)

-- least_share: what each lane that has any waiting gets of `room` at least, so that none starves.
local function least_share(room) return math.max(1, math.floor(room / 10)) end

-- lane_shares: how many of `room` each lane gets, the urgent lanes first. waiting: how many each lane has, most urgent
-- first. Each lane gets at least one, so with more lanes than room the shares are more than `room` in all.
local function lane_shares(waiting, room)
  local shares, left, least = {}, room, least_share(room)
  for i, n in ipairs(waiting) do
    shares[i] = math.min(n, least)
    left = left - shares[i]
  end
  for i, n in ipairs(waiting) do
    local more = math.max(0, math.min(n - shares[i], left))
    shares[i], left = shares[i] + more, left - more
  end
  return shares
end
