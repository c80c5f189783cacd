-- needs: base, batches, deliveries, job_records, job_states, jobs, leader, queues, windows
-- ARGV: an object of max_attempts, resend_after_ms, ttl_ms (of results), lease_ms, gap_ms, limit, queues: of each
--       its priority (or 'windows'), its model queue, and its Celery list; and empty: lists that the first of several passes found empty.
-- Returns names and values of counts (requeued, lost, expired, resent, dropped, and full: 1 if a limit was hit), and the
-- lists that were empty: for the next pass, from which the messages that this one sends must not hide lost ones.
--
-- reconciled_at, grace_since    when the reconciler last looked, and, after a gap, since when leases that ran out are
--                       spared for a while
local args = cjson.decode(ARGV[1])
local ttl, lease, limit = args.ttl_ms, args.lease_ms, args.limit
local STALE_MESSAGES = 1000 -- of jobs that have ended, beside as many as there are live ones
local requeued, lost, expired, resent, dropped, full = 0, 0, 0, 0, 0, 0
local is_empty, empty = {}, {}
for _, list in ipairs(args.empty or {}) do is_empty[list] = true end
for _, queue in ipairs(args.queues) do
  local list = queue[3]
  is_empty[list] = is_empty[list] or redis.call('LLEN', list) == 0
  if is_empty[list] then table.insert(empty, list) end
end

local function due_ids(index, until_ms)
  local ids = redis.call('ZRANGEBYSCORE', index, '-inf', int(until_ms), 'LIMIT', 0, limit)
  if #ids == limit then full = 1 end
  return ids
end

local function due(index, until_ms)
  return jobs_of(index, due_ids(index, until_ms))
end

-- The same of windows, as they were when this begins.
local function windows_of(index, ids)
  local windows = {}
  for _, id in ipairs(ids) do
    local win = load_window(id)
    if win then table.insert(windows, win) else redis.call('ZREM', index, id) end
  end
  return windows
end

-- What the clock of Redis wrote before it was set back would otherwise wait until the old time has come again.
local function not_beyond(index, until_ms)
  local ids = redis.call('ZRANGEBYSCORE', index, '(' .. int(until_ms), '+inf', 'LIMIT', 0, limit)
  if #ids == limit then full = 1 end
  for _, id in ipairs(ids) do redis.call('ZADD', index, int(until_ms), id) end
  return ids
end

local function sent_now(priority, id)
  redis.call('HSET', P .. (priority == 'windows' and 'win:' or 'job:') .. id, 'enqueued_at', int(NOW))
end

local function not_longer(key, ms)
  if redis.call('PTTL', P .. key) > ms then redis.call('PEXPIRE', P .. key, int(ms)) end
end

not_beyond(P .. 'leases', NOW + lease)
not_beyond(P .. 'window_leases', NOW + lease)
not_longer('grace_since', lease)
not_longer('leader', LEAD_MS)
not_longer('bulk_room', LEAD_MS)
not_longer('interactive_room', LEAD_MS)
for _, queue in ipairs(args.queues) do
  local priority, model_queue = unpack(queue)
  local pending = queue_key('pending', priority, model_queue)
  for _, id in ipairs(not_beyond(pending, NOW)) do
    if redis.call('EXISTS', P .. (priority == 'windows' and 'win:' or 'job:') .. id) == 1 then
      sent_now(priority, id)
    else
      redis.call('ZREM', pending, id)
    end
  end
  local claimed = queue_key('claimed', priority, model_queue)
  if tonumber(redis.call('GET', claimed) or '0') > NOW then redis.call('SET', claimed, int(NOW)) end
end

-- After a gap (Redis was down, or nobody looked) leases that ran out in it may be old because they could not be
-- renewed: their holders get one lease's time to say that they live. Those that ran out before get no more, or an io
-- worker that is killed again and again would spare them for ever.
local last = tonumber(redis.call('GET', P .. 'reconciled_at') or int(NOW))
redis.call('SET', P .. 'reconciled_at', int(NOW))
if last > NOW then hooks_earlier(last - NOW) end
if NOW - last > args.gap_ms then redis.call('SET', P .. 'grace_since', int(last), 'PX', int(lease)) end

local since = tonumber(redis.call('GET', P .. 'grace_since') or int(NOW))
for job in due(P .. 'leases', math.min(NOW, since)) do
  if close_if_not_runnable(job, args.max_attempts, ttl) then
    lost = lost + 1
  else
    requeue(job, job.attempts)
    requeued = requeued + 1
  end
end

local index = P .. 'window_leases'
for _, win in ipairs(windows_of(index, due_ids(index, math.min(NOW, since)))) do
  local outcome = lose_window(win, args.max_attempts)
  if outcome == 'lost' then lost = lost + 1 elseif outcome == 'requeued' then requeued = requeued + 1 end
end

-- A running job past its deadline is the engine's to end, which keeps the partial text.
for job in due(P .. 'deadlines', NOW) do
  if job.status == 'queued' then
    close(job, 'expired', '', '', ttl)
    expired = expired + 1
  else
    redis.call('ZREM', P .. 'deadlines', job.id)
  end
end

-- A message is lost if it is old and its queue is empty, or if one sent well after it has been claimed. Where most are of
-- jobs that have ended, they make way for those of the live ones.
for _, queue in ipairs(args.queues) do
  local priority, model_queue, list = unpack(queue)
  local newest = NOW
  if not is_empty[list] then
    newest = math.min(NOW, tonumber(redis.call('GET', queue_key('claimed', priority, model_queue)) or '0'))
  end
  local function again(job)
    sent_now(priority, job.id)
    job.lane = model_queue
    send(job)
    resent = resent + 1
  end
  local pending, old = queue_key('pending', priority, model_queue), newest - args.resend_after_ms
  if redis.call('LLEN', list) > 2 * redis.call('ZCARD', pending) + STALE_MESSAGES then
    redis.call('UNLINK', list)
    old = NOW
  end
  if priority == 'windows' then
    for _, win in ipairs(windows_of(pending, due_ids(pending, old))) do again(win) end
  else
    for job in due(pending, old) do again(job) end
  end
end

-- A model may not be served any more, so that nobody takes the messages of jobs that have ended.
local model_queues = redis.call('SMEMBERS', P .. 'lanes')
table.insert(model_queues, '')
for _, model_queue in ipairs(model_queues) do
  local waiting = 0
  for _, priority in ipairs({ 'interactive', 'bulk', 'windows' }) do
    local count = redis.call('ZCARD', queue_key('pending', priority, model_queue))
    if count == 0 then redis.call('UNLINK', P .. queue_name(priority, model_queue)) end
    waiting = waiting + count
  end
  if waiting == 0 then redis.call('SREM', P .. 'lanes', model_queue) end
end

for job in due(P .. 'expiry', NOW) do
  forget(job)
  dropped = dropped + 1
end
for _, id in ipairs(due_ids(P .. 'batches:expiry', NOW)) do drop_batch(id) end

return { { 'requeued', requeued, 'lost', lost, 'expired', expired, 'resent', resent, 'dropped', dropped, 'full', full },
  empty }
