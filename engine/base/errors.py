"""Errors of the engine.

EngineError
├── ModelLoadError      the GGUF cannot be served
│   └── RegisterError   the model's name is not registered, or the registry cannot be read or written
├── ImportanceError     the importance matrix of a text cannot be made
├── RequestRefused      this request can never run; `param` names the field at fault
├── DecodeFailed        llama.cpp failed on a batch that held this request
└── EngineClosed        the engine was shut down before the request ended
"""


class EngineError(Exception):
    """Base of all errors of the engine; `code` is stable and machine-readable."""

    code = "engine_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param


class ModelLoadError(EngineError):
    """The model file is missing, not a GGUF, damaged, or of a kind the engine cannot serve."""

    code = "model_load_failed"


class RegisterError(ModelLoadError):
    """A model name that is malformed, unknown or taken, or a registry that cannot be read or written."""

    code = "model_register"


class ImportanceError(EngineError):
    """The text is missing, too short or not UTF-8, or this build of llama.cpp does not expose its tensors."""

    code = "importance_failed"


class RequestRefused(EngineError):
    """The request can never run as it stands, whatever else is running."""

    code = "invalid_request"


class DecodeFailed(EngineError):
    """llama.cpp failed to decode a batch, and the request's cells were removed."""

    code = "decode_failed"


class EngineClosed(EngineError):
    """The engine was shut down before the request ended."""

    code = "engine_closed"
