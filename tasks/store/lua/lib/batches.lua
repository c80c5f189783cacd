-- needs: base, idempotency, quotas
-- The records of batches.
--
-- batch:ID hash         a batch; batch:ID:live its jobs and windows that have not ended, batch:ID:ended jobs that have
--                       and whose results are not collected yet, batch:ID:parts names of the segments of those that
--                       are, batch:ID:codes why lines failed -> how many
-- batches, batches:active    id -> sequence number; those that somebody must still work on
-- owner:KEY:batches     index of what a key has: id -> sequence number
-- batches:expiry        ended batches: id -> when the record is dropped
-- batches:cleanup       set of batches of which nothing must stay in the file store but their output files, from 30 s after
--                       their end (leader/lead.lua)

-- Whether a batch has ended, perhaps under another leader, and nothing more may be noted of it. What a late leader
-- has written for one that was dropped is removed.
local function is_over(id)
  if redis.call('ZSCORE', P .. 'batches:active', id) then return false end
  if redis.call('EXISTS', P .. 'batch:' .. id) == 0 then redis.call('SADD', P .. 'batches:cleanup', id) end
  return true
end

-- Of an ended batch. What it may still have in the file store, written by one who was slow, goes too.
local function drop_batch(id)
  local key = P .. 'batch:' .. id
  local fields = redis.call('HMGET', key, 'owner', 'note', 'stored')
  redis.call('ZREM', P .. 'owner:' .. (fields[1] or '') .. ':batches', id)
  forget_note('batch', fields[2], id)
  count_bytes(fields[1] or '', -(tonumber(fields[3] or '0')))
  redis.call('DEL', key, key .. ':codes', key .. ':parts')
  redis.call('ZREM', P .. 'batches', id)
  redis.call('ZREM', P .. 'batches:expiry', id)
  redis.call('SADD', P .. 'batches:cleanup', id)
  wake()
end
