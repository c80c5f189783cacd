"""The model worker: it claims jobs, runs them on the engine and keeps their leases.

In: the ids of jobs.
Out: their results. The only package of tasks that imports engine.
Public: model_worker.ModelWorker, engine_loader.load_engine, engine_loader.engine_config,
engine_loader.refuses_all.
"""
