-- needs: base, queues, windows
-- ARGV: an object of id, worker, holder (name of its connections), claim_id, lease_ms, max_attempts, model (that the worker
--       serves, '' for any)
-- Returns 'claimed' with an object of what the worker needs, and the lines; or why not: 'unknown' | 'busy' | 'done' |
-- 'elsewhere' (it waits now in the queue of the model that it asks for). A window whose lease ran out is busy until the
-- reconciler has parted it.
local args = cjson.decode(ARGV[1])
local win = load_window(args.id)
if not win then return { 'unknown' } end
if win.status == 'running' and win.claim_token ~= args.claim_id then return { 'busy' } end
if win.status == 'queued' then -- else the reply of this very claim was lost
  if end_if_over(win) then return { 'done' } end
  note_claimed(win)
  leave_window_lists(win)
  local model, own = win.model, args.model
  if own ~= '' and model ~= '' and model ~= own and (win.lane == model or known(model)) then
    count_lines_in_flight(win, -win.left)
    win.lane = model
    count_lines_in_flight(win, win.left)
    queue_window(win, live_lines(win, 0))
    return { 'elsewhere' }
  end
  win.status, win.fence, win.claim_token, win.worker = 'running', next_fence(win), args.claim_id, args.worker
  win.holder = args.holder or ''
  save_window(win, 'status', 'fence', 'claim_token', 'worker', 'holder')
end
redis.call('ZADD', P .. 'window_leases', int(NOW + args.lease_ms), win.id)
return { 'claimed', cjson.encode({ fencing_token = win.fence, attempts = win.attempts + 1,
  isolated = win.attempts > 0 and win.attempts + 1 >= args.max_attempts, batch = win.batch, owner = win.owner,
  model = win.model, deadline = int(win.deadline), created_at = win.created_at, queued_at = win.enqueued_at, now = NOW }),
  redis.call('HGET', window_key(win.id), 'lines') }
