"""Errors of the job system.

TasksError
├── SettingsError          a setting has a bad value; the message names the variable
├── StoreUnavailable       Redis cannot be reached, is full, or did not answer in time
├── PublishFailed          the record is stored, but its Celery message could not be sent
├── JobNotFound            no record under this id
├── JobNotFinished         only a job that has ended can be deleted
├── IdempotencyConflict    the same idempotency key came with another body
└── JobFailed              what the Celery task raises so that Flower shows a failed job as failed
"""


class TasksError(Exception):
    """Anything the job system refuses or fails at."""


class SettingsError(TasksError):
    """A setting has a bad value; the message is one line and names the variable."""


class StoreUnavailable(TasksError):
    """Redis cannot be reached, is full, or did not answer in time."""


class PublishFailed(TasksError):
    """The Celery message could not be sent; the reconciler sends it again."""


class JobNotFound(TasksError):
    """No job has this id; it never existed, was deleted, or its time to live has passed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job with id {job_id!r}")


class JobNotFinished(TasksError):
    """Only a job that has ended can be deleted; cancel it first."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} has not ended yet: cancel it before deleting it")


class IdempotencyConflict(TasksError):
    """The idempotency key was already used with another body."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"this Idempotency-Key was used with another body, for job {job_id}")


class JobFailed(TasksError):
    """Raised by the Celery task: Flower shows its repr, so that is the bare line `code: message`."""

    def __repr__(self) -> str:
        return str(self)
