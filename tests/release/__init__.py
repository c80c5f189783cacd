"""A release as users get it: built, looked into, and installed into empty environments.

`make release` does all of it and needs a network; `make test` builds the archives and looks into them.
"""
