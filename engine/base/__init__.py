"""Types shared by the whole engine: configuration, requests and completions, errors, histograms.

In: fields as the caller gives them.
Out: validated frozen dataclasses.
Public: errors.ModelLoadError, errors.EngineError, config.EngineConfig, request.Request, request.Completion,
request.FinishReason.
"""
