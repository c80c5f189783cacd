-- needs: base
-- What an owner may have and has: tokens of a day, jobs and batches under way, bytes of records.
--
-- owner:KEY:rate        when all requests of its minute are free again, ms
-- owner:KEY:tokens:DAY  what it has spent, and what is set aside for jobs that have not ended
-- live                  jobs of a key, without lines of batches, that have not ended: key id -> how many
-- live_batches          batches of a key that have not ended: key id -> how many
-- stored_bytes          owner -> bytes that its jobs, batches and deliveries take here; each record has its own as `stored`

local DAY_MS = 24 * 3600 * 1000
-- What records take beside the texts in them, measured; PAIR_BYTES: a place in an index of metadata.
local JOB_BYTES, BATCH_BYTES, HOOK_BYTES, NOTE_BYTES, PAIR_BYTES, WINDOW_BYTES = 2650, 4000, 2000, 350, 150, 3500

-- What a key has spent today, with what is set aside; the name of the counter, and when its day ends, in ms.
local function spent_today(owner)
  local day = math.floor(NOW / DAY_MS)
  local counter = P .. 'owner:' .. owner .. ':tokens:' .. int(day)
  return tonumber(redis.call('GET', counter) or '0'), counter, (day + 1) * DAY_MS
end

-- A limit that a key may have of its own; usual: of all owners that have none.
local function limit_of(owner, name, usual)
  return keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, name) or '') or tonumber(usual)
end

-- Set tokens aside for a new job, until its end says what it took: fields for its record.
local function reserve_quota(owner, tokens)
  if not keyed(owner) then return {} end
  local _, counter = spent_today(owner)
  redis.call('INCRBY', counter, tokens)
  redis.call('PEXPIRE', counter, 2 * DAY_MS)
  return { 'set_aside', tokens, 'spent_in', counter }
end

-- Tokens that a key has left today, 0 or fewer for none, and when the next are given, in ms; nil without a limit.
local function tokens_left(owner)
  local limit = keyed(owner) and tonumber(redis.call('HGET', P .. 'key:' .. owner, 'tokens_per_day') or '')
  if not limit then return nil end
  local spent, _, ends = spent_today(owner)
  return limit - spent, ends
end

-- Something of a key has ended, which counted while it had not.
local function release_concurrency_slot(counts, slot, owner)
  if slot ~= '' and redis.call('HINCRBY', P .. counts, owner, -1) <= 0 then redis.call('HDEL', P .. counts, owner) end
end

-- So many tokens more than were set aside, or fewer, in a day's counter that is there still; '' for none.
local function spend(counter, tokens)
  if counter ~= '' and redis.call('EXISTS', counter) == 1 then redis.call('INCRBY', counter, int(tokens)) end
end

-- What an ended job took in place of what was set aside for it, and its concurrency slot.
local function settle_quota(job, tokens)
  if job.spent_in ~= '' then spend(job.spent_in, tokens - tonumber(job.set_aside)) end
  release_concurrency_slot('live', job.seat, job.owner)
end

-- Work without an owner is counted nowhere.
local function count_bytes(owner, bytes)
  if owner ~= '' then add_to('stored_bytes', owner, bytes) end
end

-- A record takes so many bytes more, or less. One of an earlier release is not counted.
local function resize(key, owner, bytes)
  if redis.call('HEXISTS', key, 'stored') == 0 then return end
  redis.call('HINCRBY', key, 'stored', int(bytes + 0))
  count_bytes(owner, bytes)
end

-- Whether an owner's records may not take so many bytes more: for the caller's answer, or nil.
local function storage_full(owner, bytes, usual)
  local most = limit_of(owner, 'max_stored_bytes', usual)
  local used = tonumber(redis.call('HGET', P .. 'stored_bytes', owner) or '0')
  return used + bytes > most and { 'storage', { int(most), 0 } } or nil
end
