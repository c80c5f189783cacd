-- needs: base
-- ARGV: text ttl ms, then of each chunk: id, fencing token, bytes of text before it, the text, its message.
-- Keeps the text for listeners who come later and publishes the message. Returns for each chunk
-- 1, or 0 when the claim is not the sender's any more. A chunk that was sent before changes nothing.
local answers = {}
for i = 2, #ARGV, 5 do
  local id, before, text = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local job = redis.call('HMGET', P .. 'job:' .. id, 'status', 'fence', 'waiters')
  local length = redis.call('STRLEN', P .. 'text:' .. id)
  local is_current = job[1] == 'running' and job[2] == ARGV[i + 1] and length >= before
  if is_current and length == before then
    redis.call('APPEND', P .. 'text:' .. id, text)
    redis.call('PEXPIRE', P .. 'text:' .. id, ARGV[1])
    for gateway in (job[3] or ''):gmatch('%S+') do redis.call('PUBLISH', P .. 'tokens:' .. gateway, ARGV[i + 4]) end
  end
  table.insert(answers, is_current and 1 or 0)
end
return answers
