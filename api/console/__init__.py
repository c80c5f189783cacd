"""The console at `/`: one page of plain HTML, CSS and ES modules, which uses the public HTTP API alone.

In: the files of the folder `static`.
Out: routes that serve them under a strict content security policy.
Public: pages.PAGES, pages.add_console.
"""
