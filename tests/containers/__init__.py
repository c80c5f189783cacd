"""The images and the Compose file, on a real Docker Engine: `make containers`.

In: a Docker Engine, 25 or newer, with compose; without a registry also mmdebstrap, as root.
Out: what each case found, sizes of images and times of starts, as a table.
Public: nothing; `python -m tests.containers` runs it.
"""
