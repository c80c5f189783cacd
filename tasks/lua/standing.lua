-- No ARGV. Returns as JSON how the queues stand: only counts, and for each priority how long (ms) its oldest job waits.
local answer = { jobs = {}, ended = {}, waiting = {}, oldest_ms = {}, held = 0, outstanding = outstanding(),
  batches = redis.call('ZCARD', P .. 'batches:active'), led = redis.call('EXISTS', P .. 'leader') }
for _, status in ipairs({ 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'expired' }) do
  answer.jobs[status] = redis.call('ZCARD', P .. 'status:' .. status)
  if TERMINAL[status] then answer.ended[status] = tonumber(redis.call('HGET', P .. 'ended', status) or '0') end
end
for _, count in ipairs(redis.call('HVALS', P .. 'held')) do answer.held = answer.held + tonumber(count) end

-- The first to be sent, and the first to be created of all that are queued: held jobs have not been sent.
local function waits(id)
  local job = redis.call('HMGET', P .. 'job:' .. id, 'priority', 'created_at')
  if not job[1] then return end
  local ms = NOW - tonumber(job[2])
  if ms > (answer.oldest_ms[job[1]] or 0) then answer.oldest_ms[job[1]] = ms end
end
for _, priority in ipairs({ 'interactive', 'bulk' }) do
  answer.waiting[priority] = redis.call('ZCARD', P .. 'pending:' .. priority)
  answer.oldest_ms[priority] = 0
  for _, id in ipairs(redis.call('ZRANGE', P .. 'pending:' .. priority, 0, 0)) do waits(id) end
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'status:queued', 0, 0)) do waits(id) end
local due = tonumber(redis.call('ZRANGE', P .. 'hook_owners', 0, 0, 'WITHSCORES')[2] or NOW)
answer.webhooks_due_ms = math.max(0, NOW - due)
answer.waiting.bulk = answer.waiting.bulk + answer.held
return cjson.encode(answer)
