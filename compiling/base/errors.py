"""Errors of compiling.

CompileError
├── HubError       a hub does not give what was named
├── SourceError    the checkpoint or GGUF cannot be compiled as it stands
│   └── UnknownError   its architecture or tokenizer is one that llama.cpp does not know
├── ConverterError llama.cpp's converter cannot be had
├── FormatError    a number format that does not exist, or that the tensors' shapes forbid
└── RoomError      too little disk or memory, or a target that cannot be written
"""


class CompileError(Exception):
    """Anything that keeps a model from being compiled; the message is one line a person can act on."""


class HubError(CompileError):
    """A hub does not give what was named: no such repository, a gated one, no network."""


class SourceError(CompileError):
    """The checkpoint or GGUF is missing, incomplete, damaged, or of a kind that cannot be converted."""


class UnknownError(SourceError):
    """An architecture, or a tokenizer, that llama.cpp does not know."""


class ConverterError(CompileError):
    """llama.cpp's converter, or a package that it needs, is not there and cannot be fetched."""


class FormatError(CompileError):
    """A number format that does not exist, or that the shapes of the model's tensors forbid."""


class RoomError(CompileError):
    """Too little disk or memory for what was asked, or a target that cannot be written."""
