"""The endpoints that batch lines may name: three of OpenAI's, and our own."""

from __future__ import annotations

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
JOBS = "/v1/jobs"  # only for batch lines; the body holds job fields, which need no translation
ENDPOINTS = (CHAT, COMPLETIONS, RESPONSES, JOBS)
