-- needs: base, queues, quotas
-- Windows: lines of a batch that travel, run and are lost together. A queued one has only lines that have not ended.
--
-- win:ID hash           a window, as long as one of its lines has not ended. lines: as tasks/records/packed_line.py
--                       packs them; count: how many, which may be fewer than are stored; states: of each 0, or 1 once it
--                       has ended; left: how many have not; opened: so many of the first ones may be in an engine;
--                       attempts: at each line, without the one that is under way; group: number of the last group of ends
--                       that was written under this claim; running_lines: of those that have not ended, how many an engine ran
--                       when this group was written, and running_tokens: what these had got. The ID has the digits of
--                       the batch and a line's number
-- window_leases         id -> when the lease of a running window runs out
-- batch:ID:results list lines that have ended and are in no segment yet, as they stand in a segment; result_bytes of the
--                       batch: of these; lines_live of the batch: lines in windows that have not ended
-- lines_ended           lines of all batches that have ended: status, or refused (when their file was read) -> how many

local WINDOW_FIELDS = { 'id', 'batch', 'owner', 'model', 'lane', 'status', 'states', 'claim_token', 'spent_in', 'preview',
  'count', 'left', 'opened', 'attempts', 'fence', 'group', 'deadline', 'created_at', 'enqueued_at', 'set_aside', 'stored', 'running_lines',
  'running_tokens' }
local WINDOW_TEXTS = 10 -- the first of these; the others are numbers
local RESULTS = 'results' -- in batch:ID:live as long as there are some: the batch has not ended

-- Why lines end that nobody runs to their end: their status, and what their owner is told.
local WITHOUT_ANSWER = {
  batch_cancelled = { 'cancelled', 'this line was cancelled before it ended' },
  batch_expired = { 'expired', 'the batch expired before this line ended' },
  worker_lost = { 'failed', 'the worker was lost %s times while running this line' },
}
-- As tasks/schema/batch_output.py writes it.
local ENTRY = '[%s,true,{"id":"batch_req_%s-%s","custom_id":%s,"response":null,' ..
  '"error":{"code":"%s","message":"%s","param":null,"line":%s}}]\n'

local function window_key(id)
  return P .. 'win:' .. id
end

local function digits(batch_id)
  return batch_id:sub(#'batch_' + 1)
end

local function load_window(id)
  local values = redis.call('HMGET', window_key(id), unpack(WINDOW_FIELDS))
  if not values[1] then return nil end
  local win = { priority = 'windows' }
  for i, name in ipairs(WINDOW_FIELDS) do win[name] = i <= WINDOW_TEXTS and values[i] or tonumber(values[i]) end
  return win
end

-- These fields of the record, as they are in win.
local function save_window(win, ...)
  local flat = {}
  for _, name in ipairs({ ... }) do
    local value = win[name]
    table.insert(flat, name)
    table.insert(flat, type(value) == 'number' and int(value) or value)
  end
  redis.call('HSET', window_key(win.id), unpack(flat))
end

local function split_lines(lines)
  local texts = {}
  for text in lines:gmatch('[^\n]*\n') do table.insert(texts, text) end
  return texts
end

-- Its lines that have not ended, from this index (from 0) on.
local function live_lines(win, from)
  local live = {}
  for i, text in ipairs(split_lines(redis.call('HGET', window_key(win.id), 'lines'))) do
    if i > from and win.states:sub(i, i) == '0' then table.insert(live, text) end
  end
  return live
end

-- Tokens that are set aside for lines: the most that each of them may generate.
local function tokens_of(texts)
  local tokens = 0
  for _, text in ipairs(texts) do tokens = tokens + text:match('^%d+\t(%d+)\t') end
  return tokens
end

local function grouped(number) -- in thousands
  return (int(number):reverse():gsub('(%d%d%d)', '%1,'):reverse():gsub('^,', ''))
end

-- As in "batch_0f lines 2,049 to 2,112"; then how many where some in between are not among them.
local function shown_lines(win, texts)
  local first, last = math.huge, 0
  for _, text in ipairs(texts) do
    local number = tonumber(text:match('^%d+'))
    first, last = math.min(first, number), math.max(last, number)
  end
  if #texts == 1 then return win.batch .. ' line ' .. grouped(first) end
  local shown_count = last - first + 1 == #texts and '' or ' (' .. grouped(#texts) .. ')'
  return win.batch .. ' lines ' .. grouped(first) .. ' to ' .. grouped(last) .. shown_count
end

local function leave_window_lists(win)
  if win.status == 'running' then
    redis.call('ZREM', P .. 'window_leases', win.id)
  else
    redis.call('ZREM', queue_key('pending', 'windows', win.lane), win.id)
  end
end

local function set_lines(win, texts)
  local lines = table.concat(texts)
  local bytes = WINDOW_BYTES + #lines
  count_bytes(win.owner, bytes - win.stored)
  win.count, win.lines, win.stored = #texts, lines, bytes
end

-- Queue a window that is in no list, with these of its lines, and send its message.
local function queue_window(win, texts)
  set_lines(win, texts)
  win.status, win.left, win.opened, win.states = 'queued', #texts, 0, ('0'):rep(#texts)
  win.set_aside, win.preview, win.enqueued_at = tokens_of(texts), shown_lines(win, texts), NOW
  win.claim_token, win.group, win.worker = '', 0, ''
  win.running_lines, win.running_tokens = 0, 0
  save_window(win, 'worker', 'lines', unpack(WINDOW_FIELDS))
  send(win)
end

-- A queued window of these lines, named by the first one, which was the first of no window before.
-- of: what it has in common with others: batch, owner, model, lane, deadline, created_at, attempts, spent_in.
local function add_window(of, texts)
  local id = 'win_' .. digits(of.batch) .. '-' .. texts[1]:match('^%d+')
  redis.call('SADD', P .. 'batch:' .. of.batch .. ':live', id)
  queue_window({ id = id, priority = 'windows', batch = of.batch, owner = of.owner, model = of.model, lane = of.lane,
    deadline = of.deadline, created_at = of.created_at, attempts = of.attempts, spent_in = of.spent_in, fence = 0,
    stored = 0 }, texts)
  return id
end

local function count_lines_in_flight(win, lines)
  add_to('outstanding', account(win.owner, win.lane), lines)
end

-- The one way for lines to end: what is counted of them, and what the output files will hold of them.
-- ends: statuses and codes (how many lines have each), cut, input_tokens, cached_tokens, output_tokens, set_aside (for them).
local function lines_ended(win, entries, ends)
  local key, bytes, succeeded = P .. 'batch:' .. win.batch, 0, ends.statuses.succeeded or 0
  for _, entry in ipairs(entries) do bytes = bytes + #entry end
  redis.call('RPUSH', key .. ':results', unpack(entries))
  redis.call('SADD', key .. ':live', RESULTS)
  count_bytes(win.owner, bytes)
  for name, number in pairs({ result_bytes = bytes, completed = succeeded, failed = #entries - succeeded,
    lines_live = -#entries, cut = ends.cut, input_tokens = ends.input_tokens, cached_tokens = ends.cached_tokens,
    output_tokens = ends.output_tokens }) do
    if number ~= 0 then redis.call('HINCRBY', key, name, int(number)) end
  end
  for code, number in pairs(ends.codes) do redis.call('HINCRBY', key .. ':codes', code, int(number)) end
  for status, number in pairs(ends.statuses) do
    for _, counts in ipairs({ 'ended', 'lines_ended' }) do redis.call('HINCRBY', P .. counts, status, int(number)) end
  end
  spend(win.spent_in, ends.input_tokens + ends.output_tokens - ends.set_aside)
  win.set_aside = win.set_aside - ends.set_aside
  win.left = win.left - #entries
  count_lines_in_flight(win, -#entries)
  wake()
end

local function end_without_answer(win, texts, code)
  if #texts == 0 then return end
  local status, message = unpack(WITHOUT_ANSWER[code])
  message = message:format(int(win.attempts))
  local entries = {}
  for i, text in ipairs(texts) do
    local number, custom_id = text:match('^(%d+)\t[^\t]*\t[^\t]*\t[^\t]*\t([^\t]*)')
    entries[i] = ENTRY:format(number, digits(win.batch), number, custom_id, code, message, number)
  end
  lines_ended(win, entries, { statuses = { [status] = #texts }, codes = { [code] = #texts }, cut = 0, input_tokens = 0,
    cached_tokens = 0, output_tokens = 0, set_aside = tokens_of(texts) })
end

-- Of a window whose lines have all ended, or whose batch has.
local function drop_window(win)
  leave_window_lists(win)
  count_bytes(win.owner, -win.stored)
  redis.call('SREM', P .. 'batch:' .. win.batch .. ':live', win.id)
  redis.call('DEL', window_key(win.id))
end

-- Why none of its lines may begin any more, or nil.
local function why_over(win)
  local ending = redis.call('HGET', P .. 'batch:' .. win.batch, 'ending')
  if ending and ending ~= '' then return 'batch_' .. ending end
  if win.deadline <= NOW then return 'batch_expired' end
end

-- End a window that nobody runs, and whose lines may not begin any more.
local function end_if_over(win)
  local why = why_over(win)
  if not why then return false end
  end_without_answer(win, live_lines(win, 0), why)
  drop_window(win)
  return true
end

-- Of a window whose holder is lost. Lines that were not open lose no attempt, in a window of their own; those that were may
-- have killed the holder. For the last attempt each of these goes alone, so that it takes no other with it.
-- Returns 'expired', 'lost' or 'requeued', as most of it is.
local function lose_window(win, max_attempts)
  if end_if_over(win) then return 'expired' end
  leave_window_lists(win)
  local suspects, waiting = {}, live_lines(win, win.opened)
  for i, text in ipairs(live_lines(win, 0)) do
    if i <= win.left - #waiting then table.insert(suspects, text) end
  end
  if #suspects == 0 then
    queue_window(win, waiting)
    return 'requeued'
  end
  if #waiting > 0 then add_window(win, waiting) end
  win.attempts = win.attempts + 1
  if win.attempts >= max_attempts then
    win.left = #suspects
    end_without_answer(win, suspects, 'worker_lost')
    drop_window(win)
    return 'lost'
  end
  if win.attempts + 1 >= max_attempts then
    for i = 2, #suspects do add_window(win, { suspects[i] }) end
    suspects = { suspects[1] }
  end
  queue_window(win, suspects)
  return 'requeued'
end

-- Of a batch that has ended: what is left of a window is forgotten.
local function forget_window(win)
  count_lines_in_flight(win, -win.left)
  spend(win.spent_in, -win.set_aside)
  drop_window(win)
end
