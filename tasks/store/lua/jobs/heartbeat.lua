-- needs: base
-- ARGV: lease ms, then id and fencing token of each running job of one worker.
-- Returns for each: 'ok' (lease renewed), 'streaming' (renewed, and a client reads the text), 'cancel' (renewed, but
-- asked to stop), 'lost' (not ours any more).
local answers = {}
local lease_until = int(NOW + tonumber(ARGV[1]))
for i = 2, #ARGV, 2 do
  local key = P .. 'job:' .. ARGV[i]
  local job = redis.call('HMGET', key, 'status', 'fence', 'watched', 'cancel_requested')
  if job[1] ~= 'running' or job[2] ~= ARGV[i + 1] then
    table.insert(answers, 'lost')
  else
    redis.call('HSET', key, 'lease_until', lease_until)
    redis.call('ZADD', P .. 'leases', lease_until, ARGV[i])
    local live = (job[3] or '') ~= '' and 'streaming' or 'ok'
    table.insert(answers, (job[4] or '') ~= '' and 'cancel' or live)
  end
end
return answers
