"""Errors of training.

TrainingError
├── PromptsError      a prompt file cannot be read, or holds no prompt
└── CollectionError   a folder of collected states is damaged, in use, or of another model or other settings
"""


class TrainingError(Exception):
    """Base of the errors of training; the message is one line that says what to do."""


class PromptsError(TrainingError):
    """A prompt file cannot be read, or holds no prompt."""


class CollectionError(TrainingError):
    """A folder of collected states is damaged, in use, or of another model or other settings."""
