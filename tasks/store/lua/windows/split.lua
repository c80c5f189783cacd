-- needs: windows
-- ARGV: id, fencing token, index from 0. The lines from there on that are not open go into a window of their own, which
-- any worker may claim; the first line stays. Returns its id, or '' where nothing is parted.
local win = load_window(ARGV[1])
if not win or win.status ~= 'running' or win.fence ~= tonumber(ARGV[2]) then return '' end
local from = math.max(tonumber(ARGV[3]), win.opened, 1)
if from >= win.count then return '' end
local texts = split_lines(redis.call('HGET', window_key(win.id), 'lines'))
local parted = { unpack(texts, from + 1, win.count) }
win.states, win.left, win.set_aside = win.states:sub(1, from), win.left - #parted, win.set_aside - tokens_of(parted)
local id = add_window(win, parted)
if win.left == 0 then
  drop_window(win) -- all that stayed had ended
else
  local stay = { unpack(texts, 1, from) }
  set_lines(win, stay)
  win.preview = shown_lines(win, stay)
  save_window(win, 'lines', 'count', 'states', 'left', 'set_aside', 'stored', 'preview')
end
end_if_over(load_window(id)) -- its batch is ending: nobody need claim it for that
return id
