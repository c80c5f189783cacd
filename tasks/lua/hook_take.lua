-- ARGV: lease ms, most deliveries, most to one receiver at once, most senders that one may lose in a row, result ttl
--       ms, most kept of a status, then receivers that the caller is sending to and how many deliveries each.
-- Takes deliveries that are due; whoever holds one must say what came of it within the lease. Drops old records.
-- Returns ms until the next one is due or -1, ms of now, then of each: id, fence, which of its tries this is, owner,
-- url, receiver, body.
local lease, most, each = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most_lost, ttl, kept = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local DROP = 200 -- in one script

for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'hook_expiry', '-inf', int(NOW), 'LIMIT', 0, DROP)) do
  forget_hook(id, P .. 'hook_expiry')
end

local function nothing_came(hook, number, why)
  note_attempt(hook, cjson.encode({ number = number, at = NOW / 1000, duration_s = cjson.null,
    status_code = cjson.null, error = why }))
end

-- Whether it may be sent.
local function begin(hook)
  local lost = tonumber(hook.lost) or 0
  if hook.sending ~= '' then
    lost = lost + 1
    nothing_came(hook, tonumber(hook.fence), 'the sender was lost before it could note an answer')
  end
  if redis.call('EXISTS', gone_key(hook.owner, hook.url)) == 1 then
    nothing_came(hook, cjson.null, 'not sent: the address answered 410 before')
    end_hook(hook, 'disabled', ttl, kept)
  elseif lost >= most_lost then
    end_hook(hook, 'failed', ttl, kept)
  else
    hook.fence = int(hook.fence + 1)
    redis.call('HSET', P .. 'hook:' .. hook.id, 'fence', hook.fence, 'lost', int(lost), 'sending', '1', 'again', '',
      'next_at', '')
    -- The more senders it has lost, the longer it waits for the next: they may be lost because of it.
    redis.call('ZADD', P .. 'hook_queue:' .. hook.to, int(NOW + lease * (lost + 1)), hook.id)
    return true
  end
end

local busy, looks = {}, most
for i = 7, #ARGV, 2 do
  busy[ARGV[i]] = tonumber(ARGV[i + 1])
  looks = looks + 1 -- receivers that are full stay in front
end
local answer = { -1, int(NOW) }
local taken, ended = 0, 0
for _, to in ipairs(redis.call('ZRANGEBYSCORE', P .. 'hook_due', '-inf', int(NOW), 'LIMIT', 0, looks)) do
  local room = math.min(each - (busy[to] or 0), most - taken)
  if room > 0 then
    local queue = P .. 'hook_queue:' .. to
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, '-inf', int(NOW), 'LIMIT', 0, room)) do
      local hook = load_hook(id)
      if not hook then
        redis.call('ZREM', queue, id)
        ended = ended + 1
      elseif begin(hook) then
        taken = taken + 1
        for _, value in ipairs({ id, hook.fence, int(hook.tries + 1), hook.owner, hook.url, to,
          redis.call('HGET', P .. 'hook:' .. id, 'body') }) do table.insert(answer, value) end
      else
        ended = ended + 1
      end
    end
    next_for(to)
  end
end
local following = redis.call('ZRANGEBYSCORE', P .. 'hook_due', '(' .. int(NOW), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if ended > 0 then
  answer[1] = 0 -- others may wait behind them
elseif following[2] then
  answer[1] = int(following[2] - NOW)
end
return answer
