-- needs: base
-- ARGV: lease ms, then id and fencing token of each running job or window of one worker.
-- Returns for each: 'ok' (lease renewed), 'streaming' (renewed, and a client reads the text), 'cancel' (renewed, but
-- asked to stop), 'lost' (not ours any more).
local lease_until = int(NOW + tonumber(ARGV[1]))

local function beat_of_window(id, fence)
  local win = redis.call('HMGET', P .. 'win:' .. id, 'status', 'fence', 'batch')
  if win[1] ~= 'running' or win[2] ~= fence then return 'lost' end
  redis.call('ZADD', P .. 'window_leases', lease_until, id)
  return redis.call('HGET', P .. 'batch:' .. win[3], 'ending') == 'cancelled' and 'cancel' or 'ok'
end

local function beat_of_job(id, fence)
  local key = P .. 'job:' .. id
  local job = redis.call('HMGET', key, 'status', 'fence', 'watched', 'cancel_requested')
  if job[1] ~= 'running' or job[2] ~= fence then return 'lost' end
  redis.call('HSET', key, 'lease_until', lease_until)
  redis.call('ZADD', P .. 'leases', lease_until, id)
  if (job[4] or '') ~= '' then return 'cancel' end
  return (job[3] or '') ~= '' and 'streaming' or 'ok'
end

local answers = {}
for i = 2, #ARGV, 2 do
  local beat = ARGV[i]:sub(1, 4) == 'win_' and beat_of_window or beat_of_job
  table.insert(answers, beat(ARGV[i], ARGV[i + 1]))
end
return answers
