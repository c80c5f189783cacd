"""The endpoints, one module for each resource.

In: HTTP requests as FastAPI parses them.
Out: HTTP responses as the OpenAPI document promises them.
"""
