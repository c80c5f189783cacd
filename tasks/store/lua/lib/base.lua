-- What every script has. KEYS[1] is the key prefix of this installation; the other keys are made from it, so
-- this runs on one Redis, not on a cluster. KEYS[2] is a channel that has the number of the database in its name, see
-- queues.lua. The only clock is that of Redis, in ms. The keys are listed at the top of the library of their subject.
--
-- key:ID hash           a key and its limits; its id is the owner of what it makes
-- keys hash             SHA-256 of an API key -> its id, of those that stand
-- key_ids list          ids of all keys ever made, in their order
-- seq                   the last sequence number given
-- events:GATEWAY        channel: "ID STATUS" when a job ends for which somebody waits there, and at each change of a
--                       streaming one; of another, if it is short, followed by its record as JSON
-- batch_ends            channel: the id of each batch when it ends
-- wake                  channel: there is something to send or to collect
-- figures, figures:WORKER    workers that left metrics for Prometheus, and the metrics of each
--
-- Stored under older names: segments parts, offset place, model_queue lane, deferred held, in_flight outstanding,
-- streaming watched, capacity room, fencing_token fence, claim_id claim_token, isolated uncounted, metrics figures,
-- concurrency slot seat.

local P = KEYS[1]
local TIME = redis.call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)

local function int(number)
  return string.format('%.0f', number)
end

-- Owners are ids of keys, or nobody in particular where no keys are used.
local function keyed(owner)
  return owner:sub(1, 4) == 'key_'
end

-- Whether whoever asks may know of what this owner has: who names no owner knows of everything.
local function seen(asking, owner)
  return asking == '' or asking == owner
end

local function add_to(counts, owner, number)
  if redis.call('HINCRBY', P .. counts, owner, int(number + 0)) <= 0 then redis.call('HDEL', P .. counts, owner) end
end

local function wake()
  redis.call('PUBLISH', P .. 'wake', '')
end
