-- needs: base, batches, leader, quotas
-- ARGV: an object, then the validation errors as JSON.
--       token (of the leader), id, chunks, lines, invalid (how many of them), model ('' for several), codes (why lines
--       are invalid -> how many), segment (that has these, or none)
-- Returns 'ok', or 'lost' if another leads or has ended it.
local args = cjson.decode(ARGV[1])
if not renew_lead(args.token) then return 'lost' end
local key = P .. 'batch:' .. args.id
if redis.call('HGET', key, 'validated') == '1' then return 'ok' end
if is_over(args.id) then return 'lost' end
redis.call('HSET', key, 'validated', 1, 'chunks', int(args.chunks), 'total', int(args.lines), 'errors', ARGV[2],
  'model', args.model)
resize(key, redis.call('HGET', key, 'owner'), #ARGV[2])
redis.call('HINCRBY', key, 'failed', int(args.invalid))
redis.call('HINCRBY', P .. 'lines_ended', 'refused', int(args.invalid))
for code, count in pairs(args.codes) do redis.call('HINCRBY', key .. ':codes', code, int(count)) end
if args.segment then redis.call('RPUSH', key .. ':parts', args.segment) end
if redis.call('HGET', key, 'status') == 'validating' then
  redis.call('HSET', key, 'status', 'in_progress', 'in_progress_at', int(NOW))
end
wake()
return 'ok'
