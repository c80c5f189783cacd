"""`medusaq run`: runs a file of prompts through a gateway, resumably, into a file of results.

In: prompts.
Out: results in the order of the input.
Public: session.RunOptions, result_lines.beginnings, run.run, run.say.
"""
