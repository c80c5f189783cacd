"""Decides whether and how much to draft: controller, latency model, prompt lookup, verification budget.

In: measured times and acceptance.
Out: drafts, if they are expected to save time.
"""
