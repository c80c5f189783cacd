"""The wire formats: job requests, OpenAI requests and responses, batch lines, tool calls.

In: JSON of a user.
Out: requests that can be stored, or an error that names the field.
"""
