"""Input files of prompts: formats, reading, ids, a survey before the run.

In: a file or standard input.
Out: prompts, or an error that names the line.
"""
