"""Prompts from rows, by Jinja templates of bounded cost.

In: a template, and the columns and values of rows.
Out: text.
Public: template.Template, cost.Cost, cost.MAX_COST.
"""
