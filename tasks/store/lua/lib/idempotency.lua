-- needs: base
-- Requests that come again with the same idempotency key.
--
-- idem:KIND:KEY hash    the job, batch or file, and the hash of the body, that came with an idempotency key

-- What came with an idempotency key, if there is such a record still: 'existing' with it, or 'conflict' with its
-- id for another body.
local function idempotent(kind, key, hash)
  if key == '' then return nil end
  local note = P .. 'idem:' .. kind .. ':' .. key
  local fields = redis.call('HMGET', note, 'id', 'hash')
  local record = fields[1] and redis.call('HGETALL', P .. kind .. ':' .. fields[1]) or {}
  if #record > 0 then
    if fields[2] ~= hash then return { 'conflict', fields[1] } end
    return { 'existing', record }
  end
end

-- What is made now came with this key. The note goes with the record, or after its time.
local function note_key(kind, key, hash, id, ttl_ms)
  if key == '' then return end
  local note = P .. 'idem:' .. kind .. ':' .. key
  redis.call('HSET', note, 'id', id, 'hash', hash)
  redis.call('PEXPIRE', note, ttl_ms)
  redis.call('HSET', P .. kind .. ':' .. id, 'note', key)
end

local function forget_note(kind, key, id)
  if not key or key == '' then return end
  local note = P .. 'idem:' .. kind .. ':' .. key
  if redis.call('HGET', note, 'id') == id then redis.call('DEL', note) end
end
