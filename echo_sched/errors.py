"""The one error family. Everything a caller can get wrong ends in one of these; our own bugs are assertions.

EchoSchedError
├── ConfigError          a setting is impossible or contradicts another (start-up; exit code 2)
├── ModelError           the model cannot be found, read or served exactly (start-up; exit code 2)
├── DataError            a prompt or trace file cannot be read or holds nothing usable (exit code 2)
├── ProfileError         a profile is malformed or was made for another model or drafter (exit code 2)
├── RequestError         one request is invalid; names the field (HTTP 400)
└── QueueFullError       the waiting queue is at its bound (HTTP 503)
"""


class EchoSchedError(Exception):
    """Base of the family. `str(error)` is one clear line for a person."""


class ConfigError(EchoSchedError):
    """A setting is impossible or contradicts another."""


class ModelError(EchoSchedError):
    """The model cannot be found, read, or served exactly."""


class DataError(EchoSchedError):
    """A prompt or trace file cannot be read or holds nothing usable."""


class ProfileError(EchoSchedError):
    """A profile is malformed or was made for another model or drafter."""


class RequestError(EchoSchedError):
    """One request is invalid. `param` names the offending field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(EchoSchedError):
    """The waiting queue is at its bound; try again later."""
