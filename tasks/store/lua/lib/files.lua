-- needs: base, idempotency, quotas
-- The records of files, and how many an owner has.
--
-- file:ID hash          a file, whose object is whole
-- files, files:PURPOSE  indexes: id -> sequence number
-- owner:KEY:files, :files:PURPOSE   the same of what a key has
-- file_seq              the last sequence number given
-- file_uses:ID          set of the batches under way that read it: it is kept as long as there is one
-- file_expiry           files that expire: id -> when
-- file_begun            objects being written: id -> until when their writer is believed alive
-- file_garbage          objects without a record: id -> when to remove them (again)
-- file_counts, file_bytes   owner -> how many files it has, and their bytes together, with those being uploaded and the
--                       inputs of its live batches, of which there is a copy
-- file_reserved         object being uploaded -> 'BYTES OWNER', counted until it is a file or gone

local function count_files(owner, files, bytes)
  if owner == '' then return end
  add_to('file_counts', owner, files)
  add_to('file_bytes', owner, bytes)
end

-- Why an owner may not have so many files more, with so many bytes together: for the caller's answer, or nil.
local function files_full(owner, files, bytes, usual_files, usual_bytes)
  local most_files, most_bytes = limit_of(owner, 'max_files', usual_files), limit_of(owner, 'max_files_bytes', usual_bytes)
  local count = tonumber(redis.call('HGET', P .. 'file_counts', owner) or '0')
  local used = tonumber(redis.call('HGET', P .. 'file_bytes', owner) or '0')
  if count + files <= most_files and used + bytes <= most_bytes then return nil end
  return { 'files', { int(count), int(used), int(bytes), int(most_files), int(most_bytes) } }
end

local function release_file(id)
  local bytes, owner = (redis.call('HGET', P .. 'file_reserved', id) or ''):match('^(%d+) (.*)$')
  if not bytes then return end
  redis.call('HDEL', P .. 'file_reserved', id)
  count_files(owner, -1, -tonumber(bytes))
end

local function drop_file(id, remove_at_ms)
  local fields = redis.call('HMGET', P .. 'file:' .. id, 'purpose', 'owner', 'bytes', 'counted', 'note')
  local purpose, own = fields[1] or '', P .. 'owner:' .. (fields[2] or '') .. ':files'
  if fields[4] then count_files(fields[2], -1, -tonumber(fields[3])) end
  forget_note('file', fields[5], id)
  redis.call('DEL', P .. 'file:' .. id)
  redis.call('ZREM', P .. 'files', id)
  redis.call('ZREM', P .. 'files:' .. purpose, id)
  redis.call('ZREM', own, id)
  redis.call('ZREM', own .. ':' .. purpose, id)
  redis.call('ZREM', P .. 'file_expiry', id)
  redis.call('ZADD', P .. 'file_garbage', int(remove_at_ms), id)
end
