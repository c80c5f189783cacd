"""The endpoints that lines of a batch are for, by the paths that OpenAI gave them."""

from __future__ import annotations

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JOBS = "/v1/jobs"  # of batch lines alone: their bodies are job fields already
ENDPOINTS = (CHAT, COMPLETIONS, JOBS)
