"""The model worker: it claims jobs, runs them on the engine and keeps their leases.

In: the ids of jobs.
Out: their results. The only package of tasks that imports engine.
"""
