--! exports lane_shares least_share
-- How much of a worker's room each lane gets. (Which of one user's lanes goes first: *sort_backlogs* of select.lua.)

-- least_share: no lane gets less of `room` while it has any waiting, so that none starves.
local function least_share(room) return math.max(1, math.floor(room / 10)) end

-- lane_shares: how many of `room` each lane gets, the urgent before the others. waiting: what each lane has, most
-- urgent first. Each gets one at the least, so where there are more lanes than room it is more in all.
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
