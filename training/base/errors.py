"""Errors of training.

TrainingError
├── PromptsError      a prompt file cannot be read, or holds no prompt
└── CollectionError   a folder of collected states is damaged, taken, or of another model or other settings
"""


class TrainingError(Exception):
    """Anything that keeps heads from being made; the message is one line a person can act on."""


class PromptsError(TrainingError):
    """A prompt file cannot be read, or holds no prompt."""


class CollectionError(TrainingError):
    """A folder of collected states is damaged, in use, or of another model or other settings."""
