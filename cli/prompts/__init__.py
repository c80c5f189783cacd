"""Input files of prompts: formats, parsing, ids, and a summary before the run.

In: a file or standard input.
Out: prompts, or an error that names the line.
"""
