-- needs: windows
-- ARGV: id, fencing token. No attempt counts: nothing went wrong with the lines.
-- Returns 1 if what has not ended is queued again, 0 if not.
local win = load_window(ARGV[1])
if not win or win.status ~= 'running' or win.fence ~= tonumber(ARGV[2]) then return 0 end
if end_if_over(win) then return 0 end
leave_window_lists(win)
queue_window(win, live_lines(win, 0))
return 1
