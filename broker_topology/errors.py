"""Errors that both wings raise. The default message of an error is the first line of its docstring."""

from __future__ import annotations


class DeadLetterOfficeError(Exception):
    """Dead Letter Office could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").splitlines()[0])


class ConfigurationError(DeadLetterOfficeError):
    """A setting is missing or wrong."""


class TopologyError(ConfigurationError):
    """The definitions file cannot be used."""


class BrokerUnavailableError(DeadLetterOfficeError):
    """The broker cannot be reached, or refuses us."""


class MalformedNoteError(DeadLetterOfficeError):
    """A failure note or outcome note does not have the form that its version promises."""
