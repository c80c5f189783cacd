-- needs: base, job_records, leader, queues, quotas
-- ARGV: an object, then the request of each line.
--       token (of the leader), id, chunk and offset of the first line to send, next_chunk and next_offset of the one
--       after the last, model_queue; lines: of each its job id, number, custom_id, model, preview and max_tokens (most of the
--       answer)
-- Returns 'ok', 'lost' (another leads), 'moved' (somebody sent these already) or 'ending' (nothing may be sent).
local args = cjson.decode(ARGV[1])
if not renew_lead(args.token) then return 'lost' end
local id, model_queue = args.id, args.model_queue
local key = P .. 'batch:' .. id
local batch = redis.call('HMGET', key, 'chunk', 'place', 'ending', 'owner', 'expires_at')
if batch[3] ~= '' or not redis.call('ZSCORE', P .. 'batches:active', id) then return 'ending' end
if batch[1] ~= int(args.chunk) or batch[2] ~= int(args.offset) then return 'moved' end
redis.call('HSET', key, 'chunk', int(args.next_chunk), 'place', int(args.next_offset))
local metadata = cjson.encode({ batch_id = id })
for i, line in ipairs(args.lines) do
  add_job(line.job_id, 'bulk', batch[4], ARGV[i + 1], metadata, batch[5], line.preview, 0,
    'model', line.model, 'lane', model_queue, 'counted', 1, 'batch', id, 'line', int(line.number), 'custom_id', line.custom_id,
    unpack(reserve_quota(batch[4], line.max_tokens)))
  redis.call('SADD', key .. ':live', line.job_id)
  add_in_flight('bulk', batch[4], model_queue)
  send({ id = line.job_id, priority = 'bulk', lane = model_queue, preview = line.preview })
end
return 'ok'
