-- needs: base, jobs, queues, quotas
-- No ARGV. Returns as JSON how the queues stand: only counts, and for each priority, of all models and of each, how
-- long (ms) its oldest job waits.
local answer = { jobs = {}, ended = {}, waiting = {}, oldest_ms = {}, deferred = 0, lines = 0, in_flight = in_flight('bulk'),
  models = {}, batches = redis.call('ZCARD', P .. 'batches:active'), led = redis.call('EXISTS', P .. 'leader') }
for _, status in ipairs({ 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'expired' }) do
  answer.jobs[status] = redis.call('ZCARD', P .. 'status:' .. status)
  if TERMINAL[status] then answer.ended[status] = tonumber(redis.call('HGET', P .. 'ended', status) or '0') end
end

local function of_model(model_queue, priority)
  answer.models[model_queue] = answer.models[model_queue] or {}
  local of = answer.models[model_queue][priority] or { waiting = 0, oldest_ms = 0 }
  answer.models[model_queue][priority] = of
  return of
end

local function since(priority, created_at, model_queue)
  local ms = NOW - tonumber(created_at)
  if ms > (answer.oldest_ms[priority] or 0) then answer.oldest_ms[priority] = ms end
  if model_queue ~= '' then
    local of = of_model(model_queue, priority)
    of.oldest_ms = math.max(of.oldest_ms, ms)
  end
end

-- The first to be sent, the first to be created of all that are queued, and of each owner's deferred ones.
local function waits(id)
  local job = redis.call('HMGET', P .. 'job:' .. id, 'priority', 'created_at', 'lane')
  if job[1] then since(job[1], job[2], job[3] or '') end
end
local model_queues = redis.call('SMEMBERS', P .. 'lanes')
table.insert(model_queues, '')
for _, priority in ipairs({ 'interactive', 'bulk' }) do
  answer.waiting[priority], answer.oldest_ms[priority] = 0, 0
  for _, model_queue in ipairs(model_queues) do
    local key = queue_key('pending', priority, model_queue)
    local count = redis.call('ZCARD', key)
    answer.waiting[priority] = answer.waiting[priority] + count
    if model_queue ~= '' and count > 0 then of_model(model_queue, priority).waiting = count end
    for _, id in ipairs(redis.call('ZRANGE', key, 0, 0)) do waits(id) end
  end
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'status:queued', 0, 0)) do waits(id) end
for _, priority in ipairs({ 'interactive', 'bulk' }) do
  local key = counts_key('held', priority)
  local deferred = redis.call('HGETALL', key)
  for i = 1, #deferred, 2 do
    local count, model_queue = tonumber(deferred[i + 1]), model_queue_of_account(deferred[i])
    answer.deferred = answer.deferred + count
    answer.waiting[priority] = answer.waiting[priority] + count
    if model_queue ~= '' then
      local of = of_model(model_queue, priority)
      of.waiting = of.waiting + count
    end
    for _, id in ipairs(redis.call('ZRANGE', key .. ':' .. deferred[i], 0, 0)) do waits(id) end
  end
end

-- Windows by their model queue, and the lines of those that wait.
answer.windows, answer.lines_ended = {}, {}
local function count_window(model_queue, status)
  answer.windows[model_queue] = answer.windows[model_queue] or { queued = 0, running = 0 }
  answer.windows[model_queue][status] = answer.windows[model_queue][status] + 1
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'window_leases', 0, -1)) do
  local model_queue = redis.call('HGET', P .. 'win:' .. id, 'lane')
  if model_queue then count_window(model_queue, 'running') end
end
for _, outcome in ipairs({ 'succeeded', 'failed', 'cancelled', 'expired', 'refused' }) do
  answer.lines_ended[outcome] = tonumber(redis.call('HGET', P .. 'lines_ended', outcome) or '0')
end
for _, model_queue in ipairs(model_queues) do
  for _, id in ipairs(redis.call('ZRANGE', queue_key('pending', 'windows', model_queue), 0, -1)) do
    local win = redis.call('HMGET', P .. 'win:' .. id, 'left', 'created_at')
    if win[1] then
      count_window(model_queue, 'queued')
      answer.waiting.bulk = answer.waiting.bulk + tonumber(win[1])
      since('bulk', win[2], model_queue)
      if model_queue ~= '' then
        local of = of_model(model_queue, 'bulk')
        of.waiting = of.waiting + tonumber(win[1])
      end
    end
  end
end

-- Lines that are to be sent and are in no window yet. Those of a key that has spent its tokens wait for no worker.
for _, id in ipairs(redis.call('ZRANGE', P .. 'batches:active', 0, -1)) do
  local key = P .. 'batch:' .. id
  local batch = redis.call('HMGET', key, 'total', 'completed', 'failed', 'ending', 'owner', 'created_at', 'lines_live')
  local sent = batch[7] or redis.call('SCARD', key .. ':live') -- jobs, of an earlier release
  local lines = batch[1] and batch[1] - batch[2] - batch[3] - sent or 0
  if lines > 0 and batch[4] == '' and (tokens_left(batch[5]) or 1) > 0 then
    answer.lines = answer.lines + lines
    since('bulk', batch[6], '')
  end
end
local due = tonumber(redis.call('ZRANGE', P .. 'hook_owners', 0, 0, 'WITHSCORES')[2] or NOW)
answer.webhooks_due_ms = math.max(0, NOW - due)
answer.waiting.bulk = answer.waiting.bulk + answer.lines
return cjson.encode(answer)
