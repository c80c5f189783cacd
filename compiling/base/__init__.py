"""What the steps of a compilation share: errors, formats, progress, state, checks of disk and memory.

In: options.
Out: checked values.
Public: errors.CompileError, progress.Progress, errors.SourceError, errors.RoomError, state.Record,
formats.Source.
"""
