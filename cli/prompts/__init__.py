"""Input files of prompts: formats, parsing, ids, and a summary before the run.

In: a file or standard input.
Out: prompts, or an error that names the line.
Public: prompt_reader.PromptLine, prompt_reader.ReadOptions, input_summary.opened, input_summary.summarize,
formats.Format, input_summary.read_lines.
"""
