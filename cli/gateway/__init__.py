"""The client of the gateway, with retries, and the options that name it.

In: requests.
Out: answers, or one-line errors.
"""
