"""Whether and how much to draft: latency model, prompt lookup, static trees, verification budget.

In: measured times and acceptance.
Out: drafts, where they are expected to pay.
"""
