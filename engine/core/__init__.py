"""One step: schedule, draft, decode, verify, rewind, commit.

In: requests.
Out: tokens, and completions as sequences end.
"""
