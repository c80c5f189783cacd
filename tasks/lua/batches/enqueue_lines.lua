-- needs: base, job_records, leader, queues, quotas
-- ARGV: leader token, batch id, chunk and place of the first line to send, chunk and place after the last one,
--       lane, then of each line: job id, line number, custom_id, model, request, preview, most tokens of the answer.
-- Returns 'ok', 'lost' (another leads), 'moved' (somebody sent these already) or 'ending' (nothing may be sent).
if not leads(ARGV[1]) then return 'lost' end
local id = ARGV[2]
local key = P .. 'batch:' .. id
local batch = redis.call('HMGET', key, 'chunk', 'place', 'ending', 'owner', 'expires_at')
if batch[3] ~= '' or not redis.call('ZSCORE', P .. 'batches:active', id) then return 'ending' end
if batch[1] ~= ARGV[3] or batch[2] ~= ARGV[4] then return 'moved' end
redis.call('HSET', key, 'chunk', ARGV[5], 'place', ARGV[6])
local metadata = cjson.encode({ batch_id = id })
local lane = ARGV[7]
for i = 8, #ARGV, 7 do
  local job = ARGV[i]
  add_job(job, 'bulk', batch[4], ARGV[i + 4], metadata, batch[5], ARGV[i + 5], 'model', ARGV[i + 3], 'lane', lane,
    'batch', id, 'line', ARGV[i + 1], 'custom_id', ARGV[i + 2],
    unpack(reserve_quota(batch[4], tonumber(ARGV[i + 6]))))
  wait_in_queue(job, 'bulk', lane)
  redis.call('SADD', key .. ':live', job)
  count_in(job, batch[4], lane)
end
return 'ok'
