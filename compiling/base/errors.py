"""Errors of compiling.

CompileError
├── HubError       a model cannot be fetched from a hub
├── SourceError    the checkpoint or GGUF is incomplete, damaged, or cannot be converted
│   └── UnknownError   llama.cpp does not support its architecture or tokenizer
├── ConverterError llama.cpp's converter is not installed and cannot be fetched
├── FormatError    a number format does not exist, or does not fit the tensors' shapes
└── RoomError      there is too little disk or memory, or a target cannot be written
"""


class CompileError(Exception):
    """Base of the errors of compiling; the message is one line that says what to do."""


class HubError(CompileError):
    """A model cannot be fetched from a hub: no such repository, a gated one, no network."""


class SourceError(CompileError):
    """The checkpoint or GGUF is missing, incomplete, damaged, or of a kind that cannot be converted."""


class UnknownError(SourceError):
    """llama.cpp does not support the architecture or the tokenizer."""


class ConverterError(CompileError):
    """llama.cpp's converter, or a package that it needs, is not installed and cannot be fetched."""


class FormatError(CompileError):
    """A number format does not exist, or does not fit the shapes of the model's tensors."""


class RoomError(CompileError):
    """There is too little disk or memory for the request, or a target cannot be written."""
