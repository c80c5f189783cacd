-- needs: base, leader, queues, quotas
-- ARGV: leader token, capacities for bulk jobs and for interactive ones as JSON, most batches to clean up, fields of a
-- batch. Takes or keeps the lead. Returns 1 with names and values of what there is to do (now in ms, accounts'
-- in-flight and deferred jobs, of bulk and of interactive ones, active batches, batches to clean up, keys among the owners
-- with their weights and the tokens that they have left today, known models), or 0 if another leads.
-- Of a batch: its fields as one text, a JSON list with false for what is absent, as a client reads a thousand of them
-- quickly; its jobs and windows that have not ended; its lines that have and are in no segment, and those of them that were
-- jobs; bytes of the others.

-- An end may be forgotten by a Redis that loses its last writes (seconds, see docs/how-to/operations.md); it is then written
-- again from what is in the file store.
local SURE_MS = 30000
local function may_clean_up(id)
  local key = P .. 'batch:' .. id
  local status = redis.call('HGET', key, 'status')
  if not status then return true end
  local ended_at = tonumber(redis.call('HGET', key, status .. '_at') or '0')
  local sure = ended_at <= NOW - SURE_MS or ended_at > NOW -- the clock was set back
  return sure and not redis.call('ZSCORE', P .. 'batches:active', id)
end

if not renew_lead(ARGV[1]) then
  if redis.call('EXISTS', P .. 'leader') == 1 then return { 0 } end
  redis.call('SET', P .. 'led_by', ARGV[1])
  renew_lead(ARGV[1])
end
redis.call('SET', P .. 'bulk_room', ARGV[2], 'PX', LEAD_MS)
redis.call('SET', P .. 'interactive_room', ARGV[3], 'PX', LEAD_MS)
local batches, owners = {}, {}
for _, id in ipairs(redis.call('ZRANGE', P .. 'batches:active', 0, -1)) do
  local key = P .. 'batch:' .. id
  owners[redis.call('HGET', key, 'owner') or ''] = true
  local results, jobs = redis.call('LLEN', key .. ':results'), redis.call('LLEN', key .. ':ended')
  local live = redis.call('SCARD', key .. ':live') - (results > 0 and 1 or 0) -- without the member 'results'
  table.insert(batches, { cjson.encode(redis.call('HMGET', key, unpack(ARGV, 5))), live, results + jobs, jobs,
    tonumber(redis.call('HGET', key, 'result_bytes') or '0') })
end
for _, priority in ipairs({ 'interactive', 'bulk' }) do
  for _, name in ipairs(redis.call('HKEYS', counts_key('held', priority))) do owners[owner_of_account(name)] = true end
end
local keys = {}
for owner in pairs(owners) do
  if keyed(owner) then
    local weight = redis.call('HGET', P .. 'key:' .. owner, 'weight') or '1'
    local left = tokens_left(owner)
    table.insert(keys, { owner, weight, left and int(left) or false })
  end
end
local cleanup = {}
for _, id in ipairs(redis.call('SRANDMEMBER', P .. 'batches:cleanup', 16 * ARGV[4])) do -- most may have just ended
  if #cleanup < tonumber(ARGV[4]) and may_clean_up(id) then table.insert(cleanup, id) end
end
return { 1, 'now', int(NOW), 'in_flight', redis.call('HGETALL', P .. 'outstanding'),
  'deferred', redis.call('HGETALL', P .. 'held'), 'active', batches,
  'cleanup', cleanup, 'keys', keys, 'known', all_known(),
  'interactive_in_flight', redis.call('HGETALL', P .. 'interactive_outstanding'),
  'interactive_deferred', redis.call('HGETALL', P .. 'interactive_held') }
