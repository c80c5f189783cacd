-- needs: base, windows
-- ARGV: ids of batches. Returns for each how many of its lines run, and the tokens that these have got so far.
local answers = {}
for i, batch_id in ipairs(ARGV) do
  local lines, tokens = 0, 0
  for _, id in ipairs(redis.call('SMEMBERS', P .. 'batch:' .. batch_id .. ':live')) do
    local win = redis.call('HMGET', window_key(id), 'status', 'running_lines', 'running_tokens')
    if win[1] == 'running' then
      lines, tokens = lines + (tonumber(win[2]) or 0), tokens + (tonumber(win[3]) or 0)
    end
  end
  answers[i] = { lines, tokens }
end
return answers
