"""Decides whether and how much to draft: controller, latency model, prompt lookup, verification budget.

In: measured times and acceptance.
Out: drafts, if they are expected to save time.
Public: tuning.Tuning, row_timer.largest_timed, row_timer.row_timer, setup.shipped_for_width,
setup.shipped_heads, setup.speculate.
"""
