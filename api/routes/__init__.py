"""The endpoints, one module for each resource.

In: HTTP requests.
Out: HTTP responses as described by the OpenAPI document.
"""
