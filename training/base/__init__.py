"""Shared parts of training: errors and progress.

In: numbers.
Out: text for people.
Public: errors.TrainingError, errors.PromptsError, errors.CollectionError, progress.Display, progress.say.
"""
