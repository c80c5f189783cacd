"""Uploaded and written files: their records in Redis, their bytes in a folder or an S3 bucket.

In: streams of bytes.
Out: files that appear whole or not at all.
Public: base.FileStore, manager.FileManager, records.Purpose, factory.make_store, records.FileRecord,
records.FileRecords.
"""
