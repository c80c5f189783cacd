-- needs: base, files, job_states, jobs, leader, outbox, quotas, windows
-- ARGV: leader token, id, result ttl ms, status, then names and values of further fields. Its end, once.
-- Returns 'ok', or 'lost' if another leads.
if not renew_lead(ARGV[1]) then return 'lost' end
local id, ttl, status = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local key = P .. 'batch:' .. id
if redis.call('ZREM', P .. 'batches:active', id) == 0 then return 'ok' end
redis.call('HSET', key, 'status', status, status .. '_at', int(NOW), unpack(ARGV, 5))
redis.call('SREM', P .. 'file_uses:' .. redis.call('HGET', key, 'input_file_id'), id)
count_files(redis.call('HGET', key, 'owner'), 0, -tonumber(redis.call('HGET', key, 'copied') or '0'))
release_concurrency_slot('live_batches', redis.call('HGET', key, 'seat') or '', redis.call('HGET', key, 'owner'))

-- One that failed may have windows, which are dropped, and jobs of an earlier release: from now on they are like any others, cancelled if they have not ended.
local jobs = redis.call('LRANGE', key .. ':ended', 0, -1)
for _, id in ipairs(redis.call('SMEMBERS', key .. ':live')) do
  local win = load_window(id)
  if win then forget_window(win) else table.insert(jobs, id) end
end
for _, job_id in ipairs(jobs) do
  local job = load_job(job_id)
  if job then
    redis.call('HSET', P .. 'job:' .. job_id, 'batch', '')
    job.batch = ''
    if TERMINAL[job.status] then
      redis.call('ZADD', P .. 'expiry', int(NOW + ttl), job_id)
    else
      cancel(job, ttl)
    end
  end
end
redis.call('DEL', key .. ':live', key .. ':ended', key .. ':results')
count_bytes(redis.call('HGET', key, 'owner'), -(tonumber(redis.call('HGET', key, 'result_bytes') or '0')))

local fields = redis.call('HMGET', key, 'validated', 'output_expires_s', 'error_file_id')
local kept = math.max(ttl, (tonumber(fields[2]) or 0) * 1000) -- not less long than its output files, if these expire
redis.call('ZADD', P .. 'batches:expiry', int(NOW + kept), id)
local in_files = (fields[3] or '') ~= '' -- of a file that has no valid line
if status ~= 'failed' or fields[1] ~= '1' or in_files then -- else its results stay: there is no other copy
  redis.call('SADD', P .. 'batches:cleanup', id)
end
local webhook = redis.call('HGET', key, 'webhook') or ''
if webhook ~= '' then
  local b = redis.call('HMGET', key, 'owner', 'metadata', 'total', 'completed', 'failed', 'output_file_id',
    'error_file_id', 'errors')
  local function quoted(text) return text and text ~= '' and cjson.encode(text) or '' end
  local codes = redis.call('HMGET', key .. ':codes', 'batch_cancelled', 'batch_expired')
  local counts = { cancelled = tonumber(codes[1] or '0'), expired = tonumber(codes[2] or '0') } -- as Batch.request_counts()
  local failed = b[5] - counts.cancelled - counts.expired
  if counts[status] then counts[status] = counts[status] + b[3] - b[4] - b[5] end
  announce(id, b[1], webhook, status, { 'metadata', b[2], 'request_counts', '{"total":' .. b[3] .. ',"completed":' ..
    b[4] .. ',"failed":' .. int(failed) .. ',"cancelled":' .. int(counts.cancelled) .. ',"expired":' ..
    int(counts.expired) .. '}', 'output_file_id', quoted(b[6]), 'error_file_id', quoted(b[7]), 'errors', b[8] or '' })
end
redis.call('PUBLISH', P .. 'batch_ends', id)
wake()
return 'ok'
