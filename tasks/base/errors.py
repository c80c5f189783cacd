"""Errors of the job system.

TasksError
├── SettingsError          a setting has a bad value; the message names the variable
├── StoreUnavailable       Redis cannot be reached, is full, or did not answer in time
├── PublishFailed          the record is stored, but its Celery message could not be sent
├── LimitReached           too much is queued, of all or of one key
│   ├── BudgetSpent        a key has no tokens left today
│   └── StorageLimit       an owner's records take as much of Redis as they may
├── FilesLimit             an owner's files are as many or as large as they may be
├── KeyNotFound            no API key under this id
├── InvalidRequest         a body is not what its schema says; `param` names the field at fault
├── JobNotFound            no record under this id
├── JobNotFinished         only a job that has ended can be deleted
├── BatchNotFound          no batch under this id
├── BatchRefused           a file that cannot be run as a batch at all
├── LeadLost               another io worker works on batches now
├── FileNotFound           no file record under this id
├── FileInUse              a batch under way reads this file
├── FileStoreUnavailable   the file store cannot be reached, or refused
│   └── FileStoreFull      it has no room left
├── ObjectMissing          the file store has no object of this name
├── BadObjectName          a name that is none of ours, or would leave the store
├── DeliveryNotFound       no delivery of a webhook under this id
├── SecretFixed            the settings give the secrets of webhooks
├── SecretChanging         the secret of webhooks was changed less than a day ago
├── TargetRefused          a webhook leads where nothing may be sent
├── AnswerTooLong          a receiver of a webhook answers with more than is read
├── AddressBusy            too many webhooks are on their way to one address
├── IdempotencyConflict    the same idempotency key came with another body
└── JobFailed              what the Celery task raises so that Flower shows a failed job as failed
"""

MOST_SHOWN = 100  # characters


class TasksError(Exception):
    """Anything the job system refuses or fails at."""


class SettingsError(TasksError):
    """A setting has a bad value; the message is one line and names the variable."""


class StoreUnavailable(TasksError):
    """Redis cannot be reached, is full, or did not answer in time."""


class PublishFailed(TasksError):
    """The Celery message could not be sent; the reconciler sends it again."""


class LimitReached(TasksError):
    """Nothing more is taken for now; retry_after_s None for as long as any other pause."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BudgetSpent(LimitReached):
    """A key has not so many tokens left today."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"the {limit} tokens a day of this API key are spent, or too few are left for this request",
            retry_after_s=retry_after_s,
        )


class StorageLimit(LimitReached):
    """An owner's records take as many bytes of Redis as they may."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"jobs, batches and deliveries of webhooks may take {limit:,} bytes, with results to come: "
            "delete jobs and batches that have ended, or wait until they are dropped"
        )


class FilesLimit(TasksError):
    """An owner's files are as many, or together as large, as they may be."""


class KeyNotFound(TasksError):
    """No API key has this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"no API key with id {_cut(key_id)!r}")


class InvalidRequest(TasksError):
    """A body is not what its schema says; the message is one line."""

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class JobNotFound(TasksError):
    """No job has this id; it never existed, was deleted, or its time to live has passed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job with id {_cut(job_id)!r}")


class JobNotFinished(TasksError):
    """Only a job that has ended can be deleted; cancel it first."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} has not ended yet: cancel it before deleting it")


class BatchNotFound(TasksError):
    """No batch has this id."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"no batch with id {_cut(batch_id)!r}")


class BatchRefused(TasksError):
    """A file that cannot be run as a batch at all: one code for the whole of it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LeadLost(TasksError):
    """Another io worker works on batches now: nothing was changed."""

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
    """The file store cannot be reached, or refused; the message is one line."""


class FileStoreFull(FileStoreUnavailable):
    """The file store has no room left; the message is one line."""


class ObjectMissing(TasksError):
    """The file store has no object of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the file store has no object {name!r}")


class BadObjectName(TasksError):
    """A name that is none of ours, or would leave the store."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} cannot be the name of an object")


class DeliveryNotFound(TasksError):
    """No delivery has this id; it never existed, or its time has passed."""

    def __init__(self, delivery_id: str) -> None:
        super().__init__(f"no delivery with id {_cut(delivery_id)!r}")


class SecretFixed(TasksError):
    """The settings give the secrets of webhooks; who set them knows them, and changes them there."""

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
    """A webhook leads where nothing may be sent; the message is one line."""


class AnswerTooLong(TasksError):
    """A receiver of a webhook sends more than is read before its answer is complete; one line."""


class AddressBusy(TasksError):
    """Too many webhooks are on their way to one address; the message is one line."""


class IdempotencyConflict(TasksError):
    """The idempotency key was already used with another body."""

    def __init__(self, object_id: str) -> None:
        super().__init__(f"this Idempotency-Key was used with another body, for {object_id}")


class JobFailed(TasksError):
    """Raised by the Celery task: Flower shows its repr, so that is the bare line `code: message`."""

    def __repr__(self) -> str:
        return str(self)


def _cut(given: str) -> str:
    """What somebody gave as an id, repeated in an error: no longer than an id may be."""
    return given[:MOST_SHOWN]
