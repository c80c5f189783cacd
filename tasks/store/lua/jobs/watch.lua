-- needs: base, jobs
-- ARGV: id, gateway, '1' if it reads the text too, then names of fields. From now on the gateway is told
-- of the end of a live job. Where it reads the text, it is told of each change, and the worker learns of it at its next heartbeat.
-- Returns these fields, or nothing for an unknown id.
local MOST_BYTES = 500 -- of names of gateways: one that is forgotten looks every two seconds
local id, gateway, streaming = unpack(ARGV)
local key = P .. 'job:' .. id
local job = redis.call('HMGET', key, 'status', 'waiters')
if not job[1] then return {} end
if not TERMINAL[job[1]] then
  local waiters = job[2] or ''
  if not (' ' .. waiters .. ' '):find(' ' .. gateway .. ' ', 1, true) then
    waiters = waiters == '' and gateway or waiters .. ' ' .. gateway
    while #waiters > MOST_BYTES do waiters = waiters:gsub('^%S+ ?', '') end
    redis.call('HSET', key, 'waiters', waiters)
  end
  if streaming == '1' then redis.call('HSET', key, 'watched', 1) end
end
return redis.call('HMGET', key, unpack(ARGV, 4))
