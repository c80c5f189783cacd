-- ARGV: max attempts, resend after ms, result ttl ms, lease ms, gap ms, limit, lease ms of webhooks,
--       then of each queue its priority, and its Celery list or, where another broker has it, its length.
-- Returns counts (requeued, lost, expired, resent, dropped), 1 if a limit was hit,
-- then id, priority and preview of each job whose message must be sent.
local max_attempts, resend_after, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, gap, limit, hook_lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local requeued, lost, expired, resent, dropped, full = 0, 0, 0, 0, 0, 0
local send = {}

local function due(index, until_ms)
  local ids = redis.call('ZRANGEBYSCORE', P .. index, '-inf', int(until_ms), 'LIMIT', 0, limit)
  if #ids == limit then full = 1 end
  return ids
end

local function to_send(job)
  for _, value in ipairs({ job.id, job.priority, job.preview }) do table.insert(send, value) end
end

-- What the clock of Redis wrote before it was set back would otherwise wait until the old time has come again.
local function not_beyond(index, until_ms)
  local ids = redis.call('ZRANGEBYSCORE', P .. index, '(' .. int(until_ms), '+inf', 'LIMIT', 0, limit)
  if #ids == limit then full = 1 end
  for _, id in ipairs(ids) do redis.call('ZADD', P .. index, int(until_ms), id) end
  return ids
end

local function not_longer(key, ms)
  if redis.call('PTTL', P .. key) > ms then redis.call('PEXPIRE', P .. key, int(ms)) end
end

-- Of webhooks all are looked through, so only when the clock was set back. One that waits for its next try waits on:
-- how long it should is not known here.
local last = tonumber(redis.call('GET', P .. 'reconciled_at') or int(NOW))
local function hooks_not_beyond(owner, to)
  local queue = hook_queue(owner, to)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, '(' .. int(NOW), '+inf')) do
    local hook = load_hook(id)
    if hook and hook.sending ~= '' then
      redis.call('ZADD', queue, 'LT', int(NOW + hook_lease * ((tonumber(hook.lost) or 0) + 1)), id)
    elseif hook and hook.tries == '0' then
      schedule_hook(hook, NOW)
    end
  end
  note_next(owner, to)
end
if NOW < last then
  for _, owner in ipairs(redis.call('ZRANGE', P .. 'hook_owners', 0, -1)) do
    for _, to in ipairs(redis.call('ZRANGE', P .. 'hook_due:' .. owner, 0, -1)) do hooks_not_beyond(owner, to) end
  end
end

not_beyond('leases', NOW + lease)
not_longer('grace_until', lease)
not_longer('leader', LEAD_MS)
for i = 8, #ARGV, 2 do
  for _, id in ipairs(not_beyond('pending:' .. ARGV[i], NOW)) do
    redis.call('HSET', P .. 'job:' .. id, 'enqueued_at', int(NOW))
  end
  if tonumber(redis.call('GET', P .. 'claimed:' .. ARGV[i]) or '0') > NOW then
    redis.call('SET', P .. 'claimed:' .. ARGV[i], int(NOW))
  end
end

-- After a gap (Redis was down, or nobody looked) the leases are old because they could not be
-- renewed: their holders get one lease's time to say that they live.
redis.call('SET', P .. 'reconciled_at', int(NOW))
if NOW - last > gap then redis.call('SET', P .. 'grace_until', int(NOW + lease), 'PX', int(lease)) end

if redis.call('EXISTS', P .. 'grace_until') == 0 then
  for _, id in ipairs(due('leases', NOW)) do
    local job = load_job(id)
    if closed_before_run(job, max_attempts, ttl) then
      lost = lost + 1
    else
      requeue(job, job.attempts)
      to_send(job)
      requeued = requeued + 1
    end
  end
end

-- A running job past its deadline is the engine's to end, which keeps the partial text.
for _, id in ipairs(due('deadlines', NOW)) do
  local job = load_job(id)
  if job.status == 'queued' then
    close(job, 'expired', '', '', ttl)
    expired = expired + 1
  else
    redis.call('ZREM', P .. 'deadlines', id)
  end
end

-- A message is lost if it is old and its queue is empty, or if one sent well after it has been claimed.
for i = 8, #ARGV, 2 do
  local priority, list = ARGV[i], ARGV[i + 1]
  local waiting = tonumber(list) or redis.call('LLEN', list)
  local newest = NOW
  if waiting > 0 then
    newest = math.min(NOW, tonumber(redis.call('GET', P .. 'claimed:' .. priority) or '0'))
  end
  for _, id in ipairs(due('pending:' .. priority, newest - resend_after)) do
    local job = load_job(id)
    redis.call('HSET', P .. 'job:' .. id, 'enqueued_at', int(NOW))
    redis.call('ZADD', P .. 'pending:' .. priority, int(NOW), id)
    to_send(job)
    resent = resent + 1
  end
end

for _, id in ipairs(due('expiry', NOW)) do
  forget(load_job(id))
  dropped = dropped + 1
end
for _, id in ipairs(due('batches:expiry', NOW)) do drop_batch(id) end

return { requeued, lost, expired, resent, dropped, full, unpack(send) }
