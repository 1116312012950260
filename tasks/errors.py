"""Errors of the task wing: what a task raises to say its intent, and what the guard of a task refuses.

Permanent means that trying again cannot help: the message goes to the dead-letter queue at once. Transient
means that it may. Every error here survives pickling, because a prefork child hands it to its parent so.
"""

from __future__ import annotations

from broker_topology.errors import ConfigurationError, DeadLetterOfficeError


class PermanentFailure(DeadLetterOfficeError):  # noqa: N818, the name that tasks raise reads as a statement
    """The task failed and trying again cannot help."""


class TransientFailure(DeadLetterOfficeError):  # noqa: N818, as above
    """The task failed and trying again may help."""

    def __init__(self, message: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds that the failing service asks to be left alone; None where it did not say."""


class TaskExitedError(PermanentFailure):
    """The task called ``sys.exit``."""


class MissingKeyError(ConfigurationError):
    """A guarded task was published without an idempotency key."""


class NotGuardedError(ConfigurationError):
    """A run without an idempotency key holds no claim."""


class PublishRefusedError(DeadLetterOfficeError):
    """The broker did not take the message: its queue is full or unavailable."""


class UnroutableTaskError(DeadLetterOfficeError):
    """The broker has no queue for the message."""


class PolicyError(ConfigurationError):
    """A task's declared policy cannot be kept."""


class PayloadNotSerializableError(PermanentFailure):
    """An argument of a guarded task has no stable form, so its payload cannot be compared."""


class ResultNotSerializableError(ConfigurationError):
    """A guarded task declares a result that JSON cannot hold."""


class PayloadMismatchError(PermanentFailure):
    """The same idempotency key was used before with other arguments."""

    def __init__(self, message: str | None = None, *, stored: str = "", given: str = "") -> None:
        super().__init__(message)
        self.stored, self.given = stored, given
        """Fingerprints of the payload on record and of the one that came now."""


class InDoubtError(PermanentFailure):
    """Nobody can know whether the effect of this key has happened: a person has to settle it."""

    def __init__(self, message: str | None = None, *, attempt: int = 0) -> None:
        super().__init__(message)
        self.attempt = attempt
        """The attempt that was interrupted; 0 where the key's record is older than its retention."""


class LeaseLostError(DeadLetterOfficeError):
    """The claim of this run is no longer its own: another run may be at work, so no effect may follow."""


class StaleFenceError(LeaseLostError):
    """The database has seen a newer claim of the same key: this run is the stale one."""


class StepError(PermanentFailure):
    """A named step is used in a way that could skip or repeat its effect."""


class RedisUnavailableError(DeadLetterOfficeError):
    """Redis cannot be reached, or refuses to write."""


class ResultUnrecordedError(RedisUnavailableError):
    """The effect has happened, but Redis stayed away until the lease ended, so it is not on record.

    The message must not be acked as it is. Published again with the settlement that this error carries, it
    records the result at its next delivery and runs nothing.
    """

    def __init__(self, message: str | None = None, *, result_json: str = "null") -> None:
        super().__init__(message)
        self.result_json = result_json
