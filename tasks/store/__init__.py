"""Redis: the client, the Lua scripts, and the stores of jobs, API keys, workers and metrics.

In: records and questions.
Out: atomic changes; every method raises StoreUnavailable while Redis is away.
Public: jobs.JobStore, workers.WorkerInfo, workers.Registry, database.Database, api_keys.KeyStore,
scripts.answering.
"""
