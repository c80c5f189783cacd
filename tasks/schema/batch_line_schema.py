"""The JSON Schema of a line of a batch file: the fields of a job under OpenAI's names."""

from __future__ import annotations

from typing import Any

from tasks.records.endpoints import CHAT, COMPLETIONS, ENDPOINTS, JOBS, RESPONSES
from tasks.schema.job_request import JobRequest
from tasks.schema.openai_requests import MAX_CUSTOM_ID, OF_THE_BATCH

# Job fields that OpenAI lacks or defines differently.
NOT_OPENAIS = ("prompt", "messages", "raw", "logprobs", "return_token_ids")
REF = "#/$defs/{model}"


def line_schema() -> dict[str, Any]:
    """Draft 2020-12. It cannot check custom_id and model against the other lines."""
    job = JobRequest.model_json_schema(ref_template=REF)
    own = {name: field for name, field in job["properties"].items() if name not in OF_THE_BATCH}
    fields = {name: field for name, field in own.items() if name not in NOT_OPENAIS}
    chat = {
        **fields,
        "messages": own["messages"],
        "max_completion_tokens": fields["max_tokens"],
        "logprobs": {"type": ["boolean", "null"]},
        "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
    }
    text = {"type": "string", "minLength": 1}
    completion = {
        **fields,
        "prompt": {"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": 1}]},
        "logprobs": own["logprobs"],
    }
    items = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}
    elsewhere = ("max_tokens", "response_format", "tools", "tool_choice")  # other names, or other forms
    response = {
        **{name: field for name, field in fields.items() if name not in elsewhere},
        "input": items,
        "instructions": {"type": ["string", "null"]},
        "max_output_tokens": fields["max_tokens"],
    }
    custom_id = {"type": "string", "minLength": 1, "maxLength": MAX_CUSTOM_ID}
    enveloped = {
        "required": ["custom_id", "method", "url", "body"],
        "additionalProperties": False,
        "properties": {
            "custom_id": custom_id,
            "method": {"const": "POST"},
            "url": {"enum": list(ENDPOINTS)},
            "body": {"type": "object"},
        },
        "oneOf": [
            _body(CHAT, chat, "messages"),
            _body(COMPLETIONS, completion, "prompt"),
            _body(RESPONSES, response, "input"),
            {"properties": {"url": {"const": JOBS}, "body": _job(own)}},
        ],
    }
    bare = _job({"custom_id": {"anyOf": [custom_id, {"type": "null"}]}, **own})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of a batch file",
        "type": "object",
        "oneOf": [enveloped, bare],
        "$defs": job.get("$defs", {}),
    }


def _body(url: str, properties: dict[str, Any], required: str) -> dict[str, Any]:
    body = {"type": "object", "required": [required], "properties": properties}
    return {"properties": {"url": {"const": url}, "body": body}}


def _job(properties: dict[str, Any]) -> dict[str, Any]:
    raw = {"required": ["raw"], "properties": {"raw": {"const": True}}}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": ["messages"], "not": raw}, {"required": ["prompt"]}],
        "not": {**raw, "required": ["raw", "tools"]},  # only a chat template shows tools to the model
    }
