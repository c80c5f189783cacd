"""The job system: records and queues in Redis, the Celery tasks, leases and their reconciler."""
