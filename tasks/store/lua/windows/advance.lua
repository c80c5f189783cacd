-- needs: windows
-- ARGV: an object, then a line of a segment for each line that has ended.
--       id, fencing_token, group (grows by one with each call under this claim), open (so many of the first lines may be
--       in the engine from now on), ends (indexes from 0 of lines that have ended), of these what lines_ended counts, and of
--       the others running_lines and running_tokens
-- Returns 'ok' with how many lines are open, how many there are and how many have not ended; or 'lost' or 'gone' where
-- the claim is not the sender's any more. A group that comes again changes nothing.
local args = cjson.decode(ARGV[1])
local win = load_window(args.id)
if not win then return { 'gone' } end
if win.status ~= 'running' or win.fence ~= args.fencing_token then return { 'lost' } end

if args.group ~= win.group then
  if args.group ~= win.group + 1 then return { 'lost' } end
  local states = win.states
  for _, index in ipairs(args.ends) do
    if index >= win.opened or states:sub(index + 1, index + 1) ~= '0' then return { 'lost' } end
    states = states:sub(1, index) .. '1' .. states:sub(index + 2)
  end
  win.states, win.group = states, args.group
  win.running_lines, win.running_tokens = args.running_lines, args.running_tokens
  if #args.ends > 0 then lines_ended(win, { unpack(ARGV, 2) }, args) end

  local why = why_over(win)
  if not why then
    win.opened = math.max(win.opened, math.min(args.open, win.count))
  elseif win.opened < win.count then
    end_without_answer(win, live_lines(win, win.opened), why)
    win.count, win.states = win.opened, win.states:sub(1, win.opened)
  end
  if win.left == 0 then
    drop_window(win)
  else
    save_window(win, 'states', 'group', 'opened', 'count', 'left', 'set_aside', 'running_lines', 'running_tokens')
  end
end
return { 'ok', win.opened, win.count, win.left }
