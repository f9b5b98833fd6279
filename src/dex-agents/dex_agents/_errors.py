"""Every error that the core raises, and what the model reads for calls without a result."""

from __future__ import annotations

TOOL_CALL_NOT_RUN_ERROR_PREFIX = "The tool did not run"
"""Starts the error text of a call whose tool provably never ran; the model may call it again."""

OUTCOME_UNKNOWN_TOOL_RESULT = (
    "The outcome of this tool call is unknown: it may or may not have taken effect. "
    "Do not call it again before you have checked, or have told the user."
)
"""What the model reads for a call that may have run and has no result."""


class AgentError(Exception):
    """Base of all errors of this package."""


class ToolExecutionError(AgentError):
    """A tool raises this for a failure that the model should see; the call is not repeated."""


class ToolNotStartedError(AgentError):
    """The tool was not entered by this attempt. A runner raises it before any effect can have happened.

    In the first attempt it makes the record one of a call that never ran. A later attempt is repeated
    like any that failed, as those before it may have run.
    """


class ToolOutcomeUnknownError(AgentError):
    """The tool was entered and nobody can say what it did; the call is not repeated.

    A read is recorded as ``failed``, anything else as ``outcome_unknown``.
    """


class ToolSourceError(AgentError):
    """What tool sources list cannot be offered; fails the ``RunModel`` attempt."""


class AgentTurnError(AgentError):
    """The turn cannot go on and a retry would not help."""


class ContractTypeError(AgentTurnError, TypeError):
    """A field of what a runner gives has the wrong type; a turn that meets it fails at once."""


class ModelCallError(AgentError):
    """A model call failed in a way that may pass.

    Args:
        message: What happened.
        retry_after_s: Seconds the provider asked to wait, if it did.
    """

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SessionError(AgentError):
    """Base of the errors that :class:`AgentSessionClient` raises."""


class SessionAlreadyExistsError(SessionError):
    """The session id was used before."""


class SessionNotFoundError(SessionError):
    """No session has this id."""


class SessionClosedError(SessionError):
    """The session has ended and takes no more commands."""


class SessionUnavailableError(SessionError):
    """No Worker or no engine answered in time; the command may have been taken, or not.

    Attributes:
        command_id: What to repeat the command with, so that it acts once: the ``message_id`` of a
            message, the ``answer_id`` of an answer, the ``turn_id`` of a cancel, the ``request_id``
            of a rewind. Empty where the
            same call again needs none.
    """

    def __init__(self, message: str, *, command_id: str = "") -> None:
        super().__init__(message)
        self.command_id = command_id


class InterruptError(SessionError):
    """An answer fits no pending interrupt: unknown, already answered, expired or mismatched."""


class TurnOpenError(SessionError):
    """A turn is open, or a message waits for its own, so the session cannot be rewound now."""


class TurnTargetError(SessionError):
    """A session cannot be rewound or forked to this turn; the text says why."""


class NewerTurnError(SessionError):
    """A session was not rewound, as a turn has ended that its caller had not seen; the text names it."""


class RequestIdReusedError(SessionError):
    """A request id was used before with other arguments."""


class InvalidInputError(SessionError, ValueError):
    """An argument was refused before anything was stored."""


class TurnWaitTimeoutError(SessionError, TimeoutError):
    """The turn did not end within the time given; the session goes on."""
