-- needs: base, quotas
-- ARGV: SHA-256 of a key, or ''. A request of whoever holds it takes its place among those of the minute.
-- Returns 'never' when no key was ever made, 'none' when none stands, 'unknown' for another, else 'ok' or 'limited' with
-- names and values: id, requests a minute or '', requests_left, ms until all are free (requests_ms) and until the next
-- is (next_ms), tokens a day or '', tokens_left, ms until all are free (tokens_ms).
local MINUTE_MS = 60000
local id = ARGV[1] ~= '' and redis.call('HGET', P .. 'keys', ARGV[1])
if not id then
  if redis.call('EXISTS', P .. 'keys') == 1 then return { 'unknown' } end
  return { redis.call('EXISTS', P .. 'key_ids') == 1 and 'none' or 'never' }
end
local limits = redis.call('HMGET', P .. 'key:' .. id, 'requests_per_minute', 'tokens_per_day')
local answer, requests, left, free_in, next_in = 'ok', tonumber(limits[1] or ''), 0, 0, 0
if requests then -- a bucket of so many that fills evenly, kept as the time at which it is full
  local each, key = MINUTE_MS / requests, P .. 'owner:' .. id .. ':rate'
  local noted = tonumber(redis.call('GET', key) or '0')
  local full_at = math.min(math.max(NOW, noted), NOW + MINUTE_MS) -- beyond that if the clock was set back since
  if full_at + each - NOW > MINUTE_MS + 0.001 then
    answer, next_in = 'limited', full_at + each - NOW - MINUTE_MS
  else
    full_at = full_at + each
  end
  if answer == 'ok' or noted > full_at then
    redis.call('SET', key, string.format('%.3f', full_at), 'PX', math.ceil(full_at - NOW))
  end
  left, free_in = math.floor((MINUTE_MS - full_at + NOW) / each + 0.001), full_at - NOW
end
local tokens, left_today, ends_in = tonumber(limits[2] or ''), 0, 0
if tokens then
  local spent, _, ends = spent_today(id)
  left_today, ends_in = math.max(0, tokens - spent), ends - NOW
end
return { answer, 'id', id, 'requests', limits[1] or '', 'requests_left', int(left),
  'requests_ms', int(math.ceil(free_in)), 'next_ms', int(math.ceil(next_in)),
  'tokens', limits[2] or '', 'tokens_left', int(left_today), 'tokens_ms', int(ends_in) }
