"""The `medusaq` command: assembles the other packages, runs the local stack, shows progress.

In: a command line.
Out: text, files and an exit code.
"""
