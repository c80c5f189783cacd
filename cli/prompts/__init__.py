"""Inputs of requests or rows: formats, parsing, templates, ids, and a summary before the run.

In: a file, a folder or standard input.
Out: prompts, or an error that names the line.
Public: prompt_reader.PromptLine, prompt_reader.ReadOptions, source.Source, source.opened_source,
formats.Format, dry_run.dry_run.
"""
