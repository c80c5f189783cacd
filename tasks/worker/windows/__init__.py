"""Windows in a model worker: lines of batches that are claimed together and run side by side.

In: ids of windows from Celery's threads. Out: ends of lines, in groups, to the store.
Public: runner.WindowRunner.
"""
