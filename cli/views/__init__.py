"""Text for the terminal: progress, tables, the live view.

In: records and snapshots.
Out: human-readable lines.
Public: progress.duration, progress.Display, model_states.ModelState, snapshot.Speeds, batch_views.details,
batch_transfer.fetch.
"""
