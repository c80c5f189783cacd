"""The wire formats: job requests, OpenAI requests and responses, batch lines, tool calls.

In: JSON of a user.
Out: requests that can be stored, or an error that names the field.
Public: job_request.JobRequest, job_request.Problem, messages.Strict, openai_responses.answer,
openai_requests.as_written, job_request.check_deadline.
"""
