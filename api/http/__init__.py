"""The HTTP layer: connection limits, errors, headers, byte ranges, server-sent events.

In: bytes and exceptions.
Out: error responses of one format, and connections within their limits.
Public: errors.BadRequest, errors.BadKey, errors.BodyTooLarge, errors.NotInTime, errors.UnknownModel,
errors.ApiError.
"""
