"""What is stored, as frozen dataclasses: jobs, batches, API keys, webhooks, claims and their ids.

In: fields as Redis holds them.
Out: typed records, and their JSON.
Public: job.Priority, job.Job, job.Status, claim.Claim, job.Decoding, batch.Batch.
"""
