"""OpenAI's Responses API: its bodies as those of chats, and jobs as its objects.

In: bodies of the Responses API; job records.
Out: bodies of chats; response objects.
Public: requests.chat_body, requests.written_there, objects.response, objects.is_response.
"""
