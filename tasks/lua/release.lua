-- ARGV: leader token, then owner and number. Makes so many of the owners' held jobs ready to be sent.
-- Returns 'lost' if another leads, else 'ok' and id and preview of each.
if not leads(ARGV[1]) then return { 'lost' } end
local answer = { 'ok' }
for i = 2, #ARGV, 2 do
  local owner = ARGV[i]
  for _, id in ipairs(redis.call('ZRANGE', P .. 'held:' .. owner, 0, tonumber(ARGV[i + 1]) - 1)) do
    local job = load_job(id)
    leave_lists(job)
    redis.call('HSET', P .. 'job:' .. id, 'enqueued_at', int(NOW))
    redis.call('ZADD', P .. 'pending:' .. job.priority, int(NOW), id)
    count_in(id, owner)
    table.insert(answer, id)
    table.insert(answer, job.preview)
  end
end
return answer
