-- needs: base, leader
-- Of a batch that an earlier release began, whose lines were jobs.
-- ARGV: leader token, batch id, most. Returns 'lost', or 'ok', the number of the next segment and the records of the
-- jobs that ended first and whose results are in no segment yet; without an id for one that is gone.
if not renew_lead(ARGV[1]) then return { 'lost' } end
local key = P .. 'batch:' .. ARGV[2]
local answer = { 'ok', redis.call('HGET', key, 'parts') }
for _, id in ipairs(redis.call('LRANGE', key .. ':ended', 0, tonumber(ARGV[3]) - 1)) do
  table.insert(answer, redis.call('HMGET', P .. 'job:' .. id, 'id', 'line', 'custom_id', 'status', 'result', 'error',
    'model', 'created_at', 'request'))
end
return answer
