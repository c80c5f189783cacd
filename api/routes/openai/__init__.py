"""OpenAI's online endpoints.

In: requests of OpenAI's clients.
Out: answers of jobs, whole or streamed.
Public: completions.router, responses.router.
"""
