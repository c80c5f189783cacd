"""Errors of the job system.

TasksError
├── SettingsError          a setting has a bad value; the message names the variable
├── StoreUnavailable       Redis cannot be reached, is full, or did not answer in time
├── LimitReached           too many jobs are queued, in total or for one key
│   ├── BudgetSpent        a key has too few tokens left today
│   └── StorageLimit       an owner's records in Redis have reached their limit of bytes
├── FilesLimit             an owner's files have reached their limit of number or bytes
├── KeyNotFound            no API key under this id
├── InvalidRequest         a request body does not match its schema; `param` names the field at fault
├── JobNotFound            no record under this id
│   └── LineOfBatch        the id of a line of a batch
├── JobNotFinished         only a job that has ended can be deleted
├── ResponseNotFound       no stored response under this id
├── BatchNotFound          no batch under this id
├── BatchRefused           the input file of a batch is invalid as a whole
├── LeadLost               another io worker has become the leader
├── FileNotFound           no file record under this id
├── FileInUse              a batch under way reads this file
├── FileStoreUnavailable   the file store cannot be reached, or failed
│   └── FileStoreFull      the file store has no space left
├── ObjectMissing          the file store has no object of this name
├── BadObjectName          an object name does not match the store's syntax
├── DeliveryNotFound       no delivery of a webhook under this id
├── SecretFixed            the settings set the secrets of webhooks
├── SecretChanging         the secret of webhooks was changed less than a day ago
├── TargetRefused          a webhook's host is invalid, cannot be resolved, or has a forbidden address
├── AnswerTooLong          the response head of a webhook receiver is too long
├── AddressBusy            all connections to the address of a webhook are in use
├── IdempotencyConflict    the idempotency key was used before with another body
└── JobFailed              what the Celery task raises so that Flower shows a failed job as failed
"""

MOST_SHOWN = 100  # characters of an id that an error repeats; no id is longer


class TasksError(Exception):
    """Base of all errors of the job system."""


class SettingsError(TasksError):
    """A setting has a bad value; the message is one line and names the variable."""


class StoreUnavailable(TasksError):
    """Redis cannot be reached, is full, or did not answer in time."""


class LimitReached(TasksError):
    """No more work is accepted for now. retry_after_s: None for the gateway's default pause."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BudgetSpent(LimitReached):
    """A key has too few tokens left today for the request."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"the {limit} tokens a day of this API key are spent, or too few are left for this request",
            retry_after_s=retry_after_s,
        )


class StorageLimit(LimitReached):
    """An owner's records in Redis have reached their limit of bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"jobs, batches and deliveries of webhooks may take {limit:,} bytes, with results to come: "
            "delete jobs and batches that have ended, or wait until they are dropped"
        )


class FilesLimit(TasksError):
    """An owner's files have reached their limit of number or bytes."""


class KeyNotFound(TasksError):
    """No API key has this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"no API key with id {_cut(key_id)!r}")


class InvalidRequest(TasksError):
    """A request body does not match its schema; the message is one line."""

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class JobNotFound(TasksError):
    """No job has this id; it never existed, was deleted, or its time to live has passed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job with id {_cut(job_id)!r}")


class LineOfBatch(JobNotFound):
    """The id is that of a line of a batch, which is no job."""

    def __init__(self, batch_id: str, line: str) -> None:
        where = f"/v1/batches/{batch_id}"
        super(JobNotFound, self).__init__(f"line {line} of {batch_id}: see {where} and {where}/output")


class JobNotFinished(TasksError):
    """Only a job that has ended can be deleted; cancel it first."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} has not ended yet: cancel it before deleting it")


class ResponseNotFound(TasksError):
    """No stored response has this id: as for jobs, or it was not to be stored."""

    def __init__(self, response_id: str) -> None:
        super().__init__(f"no response with id {_cut(response_id)!r}")


class BatchNotFound(TasksError):
    """No batch has this id."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"no batch with id {_cut(batch_id)!r}")


class BatchRefused(TasksError):
    """The input file of a batch is invalid as a whole; code: the batch's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LeadLost(TasksError):
    """Another io worker has become the leader; nothing was changed."""

    def __init__(self) -> None:
        super().__init__("another io worker leads")


class FileNotFound(TasksError):
    """No file has this id; it never existed, was deleted, or has expired."""

    def __init__(self, file_id: str) -> None:
        super().__init__(f"no file with id {_cut(file_id)!r}")


class FileInUse(TasksError):
    """A batch under way reads this file; cancel it first, or wait for its end."""

    def __init__(self, file_id: str) -> None:
        super().__init__(f"file {file_id} is the input of a batch that has not ended yet")


class FileStoreUnavailable(TasksError):
    """The file store cannot be reached, or failed; the message is one line."""


class FileStoreFull(FileStoreUnavailable):
    """The file store has no space left; the message is one line."""


class ObjectMissing(TasksError):
    """The file store has no object of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the file store has no object {name!r}")


class BadObjectName(TasksError):
    """An object name does not match the store's syntax, which also keeps it inside the store's folder."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} cannot be the name of an object")


class DeliveryNotFound(TasksError):
    """No delivery has this id; it never existed, or its time to live has passed."""

    def __init__(self, delivery_id: str) -> None:
        super().__init__(f"no delivery with id {_cut(delivery_id)!r}")


class SecretFixed(TasksError):
    """The settings set the secrets of webhooks, so they can only be read and changed there."""

    def __init__(self) -> None:
        super().__init__("MEDUSAQ_WEBHOOK_SECRETS gives the secrets of webhooks: ask who runs this system")


class SecretChanging(TasksError):
    """The secret of webhooks was changed less than a day ago: receivers may know only the one before it."""

    def __init__(self) -> None:
        super().__init__(
            "the secret was changed less than a day ago, and receivers may know only the one before it; "
            "previous_until says how long"
        )


class TargetRefused(TasksError):
    """A webhook's host is invalid, cannot be resolved, or has a forbidden address; one line."""


class AnswerTooLong(TasksError):
    """The response head of a webhook receiver exceeds the limit; the message is one line."""


class AddressBusy(TasksError):
    """All connections to the address of a webhook are in use; the message is one line."""


class IdempotencyConflict(TasksError):
    """The idempotency key was used before with another body."""

    def __init__(self, object_id: str) -> None:
        super().__init__(f"this Idempotency-Key was used with another body, for {object_id}")


class JobFailed(TasksError):
    """Raised by the Celery task: Flower shows its repr, so that is the bare code of the error.

    Its message may quote the request.
    """

    def __repr__(self) -> str:
        return str(self)


def _cut(given: str) -> str:
    """Cut an id that a user sent, which may have any length."""
    return given[:MOST_SHOWN]
