-- needs: base, leader, quotas, windows
-- ARGV: an object, then the lines of each window, packed.
--       token (of the leader), id (of the batch), chunk and offset of the first line to send, next_chunk and next_offset of
--       the one after the last, model_queue, models (of each window)
-- Returns 'ok', 'lost' (another leads), 'moved' (somebody sent these already) or 'ending' (nothing may be sent).
local args = cjson.decode(ARGV[1])
if not renew_lead(args.token) then return 'lost' end
local key = P .. 'batch:' .. args.id
local batch = redis.call('HMGET', key, 'chunk', 'place', 'ending', 'owner', 'expires_at')
if batch[3] ~= '' or not redis.call('ZSCORE', P .. 'batches:active', args.id) then return 'ending' end
if batch[1] ~= int(args.chunk) or batch[2] ~= int(args.offset) then return 'moved' end
redis.call('HSET', key, 'chunk', int(args.next_chunk), 'place', int(args.next_offset))
for i, model in ipairs(args.models) do
  local texts = split_lines(ARGV[i + 1])
  local reserved = reserve_quota(batch[4], int(tokens_of(texts)))
  local of = { batch = args.id, owner = batch[4], model = model, lane = args.model_queue, deadline = tonumber(batch[5]),
    created_at = NOW, attempts = 0, spent_in = reserved[4] or '' }
  count_lines_in_flight(of, #texts)
  redis.call('HINCRBY', key, 'lines_live', #texts)
  add_window(of, texts)
end
return 'ok'
