"""Uploaded and written files: their records in Redis, their bytes in a folder or an S3 bucket.

In: streams of bytes.
Out: files that appear whole or not at all.
"""
