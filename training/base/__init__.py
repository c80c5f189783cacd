"""What training shares: errors and progress.

In: numbers.
Out: text for people.
"""
