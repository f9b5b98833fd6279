"""The one Flow of all agent sessions, and its RPCs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import jsonschema
from dex import (
    Context,
    Flow,
    PersistenceSchema,
    RPCResult,
    StepList,
    Stream,
    rpc,
)

from dex_agents import _failpoints
from dex_agents._arguments import check_flow_type, shown
from dex_agents._contract import AgentFrameworkRunner, HistoryCompactor, InterruptKind
from dex_agents._session import interrupts, resources, steering, step_options
from dex_agents._session.compaction import CompactionPolicy
from dex_agents._session.encoding import decode, encode
from dex_agents._session.failure_log import silence_told_failures
from dex_agents._session.fork import is_incomplete, read_fork, take_piece
from dex_agents._session.options import AgentSessionOptions, check_duration
from dex_agents._session.pages import read_page
from dex_agents._session.records import (
    Header,
    StoredInterrupt,
    arguments_digest,
    content_digest,
    message_digest,
    message_to_json,
)
from dex_agents._session.rewind import read_branch, rewind
from dex_agents._session.steps_compact import CompactHistory
from dex_agents._session.steps_end import CancelTurn, CloseSession
from dex_agents._session.steps_tools import (
    AwaitToolApproval,
    CallSingleAttemptTool,
    CallTool,
    RecordToolOutcome,
    now_ms,
)
from dex_agents._session.steps_turn import AwaitUserMessage, FailTurn, ResumeTurn, RunModel
from dex_agents._session.steps_waits import AwaitAnswer
from dex_agents._tracing import SessionTracer

DEFAULT_STREAM_BYTES = 10 * 1024 * 1024
_MOST_STREAM_BYTES = 1 << 40
TURN_STEPS = (
    CompactHistory,
    RunModel,
    AwaitToolApproval,
    AwaitAnswer,
    CallTool,
    CallSingleAttemptTool,
    RecordToolOutcome,
    ResumeTurn,
    FailTurn,
)
"""The Steps that an open turn may have."""


class AgentSessionFlow(Flow[bytes]):
    """Runs the sessions of one agent; one execution is one session, its id is the session id.

    Build it once per agent and process; the process that serves it and every process that uses a
    client build the same one.

    Args:
        runner: The framework's side.
        flow_type: Flow type of the sessions; keep it stable, unique within a Registry.
        options: Settings.
        interrupt_deadline: How long a person may take to answer; whole seconds, ``None`` is for
            ever. A call that nobody approved in time is rejected.
        event_stream_capacity_bytes: Budget of the Stream ``AgentEvents``, shared by all sessions
            of the Flow type.
        compaction: When older turns are summarized; needs a runner that can.

    Raises:
        TypeError, ValueError: An argument is wrong; the text names it.
    """

    def __init__(
        self,
        runner: AgentFrameworkRunner,
        *,
        flow_type: str,
        options: AgentSessionOptions | None = None,
        interrupt_deadline: timedelta | None = None,
        event_stream_capacity_bytes: int = DEFAULT_STREAM_BYTES,
        compaction: CompactionPolicy | None = None,
    ) -> None:
        if not isinstance(runner, AgentFrameworkRunner):
            raise TypeError(f"runner must be an AgentFrameworkRunner, got {type(runner).__name__}")
        check_flow_type(flow_type)
        if options is not None and not isinstance(options, AgentSessionOptions):
            raise TypeError(f"options must be AgentSessionOptions, got {shown(options)}")
        if interrupt_deadline is not None:
            check_duration("interrupt_deadline", interrupt_deadline)
        if isinstance(event_stream_capacity_bytes, bool) or not isinstance(
            event_stream_capacity_bytes, int
        ):
            raise TypeError("event_stream_capacity_bytes must be an int")
        if event_stream_capacity_bytes < 128 * 1024:
            raise ValueError(
                "event_stream_capacity_bytes must be at least 131072, so that one message of "
                f"events always fits, got {shown(event_stream_capacity_bytes)}"
            )
        if event_stream_capacity_bytes > _MOST_STREAM_BYTES:
            raise ValueError(
                f"event_stream_capacity_bytes must be at most {_MOST_STREAM_BYTES}, got "
                f"{shown(event_stream_capacity_bytes)}"
            )
        if compaction is not None:
            if not isinstance(compaction, CompactionPolicy):
                raise TypeError(f"compaction must be a CompactionPolicy, got {shown(compaction)}")
            if not isinstance(runner, HistoryCompactor):
                raise ValueError(
                    f"the runner, a {type(runner).__name__}, cannot summarize a session's history; "
                    "leave compaction out"
                )
            if why := getattr(runner, "refuses_compaction", ""):
                raise ValueError(why)
        silence_told_failures()
        self.runner = runner
        self.compaction = compaction
        self.options = options or AgentSessionOptions()
        self.interrupt_deadline_s = (
            None if interrupt_deadline is None else int(interrupt_deadline.total_seconds())
        )
        self.event_stream: Stream[str] = Stream(
            resources.STREAM_NAME, str, event_stream_capacity_bytes
        )
        self._flow_type = flow_type
        self.tracer = SessionTracer(self.options.tracing, flow_type)

    def get_flow_type(self) -> str:
        """The Flow type of the sessions, for the SDK's Registry."""
        return self._flow_type

    def get_steps(self) -> StepList[bytes]:
        """The Steps of a session, the first one first, for the SDK's Registry."""
        return StepList.start_step(AwaitUserMessage(self)).other_steps(
            CompactHistory(self),
            RunModel(self),
            AwaitToolApproval(self),
            AwaitAnswer(self),
            CallTool(self),
            CallSingleAttemptTool(self),
            ResumeTurn(self),
            RecordToolOutcome(self),
            FailTurn(self),
            CancelTurn(self),
            CloseSession(self),
        )

    def get_persistence_schema(self) -> PersistenceSchema:
        """What a session stores under which names, for the SDK's Registry."""
        return PersistenceSchema.of(
            resources.header,
            resources.turns_done,
            resources.revision,
            resources.cancel_asked,
            resources.fork,
            resources.closing,
            resources.messages,
            resources.summaries,
            resources.summary_marks,
            resources.rewinds,
            resources.removal_note,
            resources.turn_states,
            resources.run_states,
            resources.tool_contexts,
            resources.records,
            resources.call_notes,
            resources.interrupts,
            resources.asked,
            resources.unapproved,
            resources.accepted,
            resources.steering,
            resources.last_turn,
            resources.outcomes,
            resources.user_messages,
            resources.answers,
            resources.finished_calls,
            self.event_stream,
        )

    # RPCs. Their names and forms are the session's protocol; use AgentSessionClient.

    @rpc(name="send_user_message")
    def send_user_message_rpc(self, context: Context, message: bytes) -> RPCResult[bytes]:
        """Queue a message for the next turn.

        The caller holds the lock of the queue and loads the message's entry in ``accepted``.
        """
        given = decode(message)
        if answer := _refused(context) or _known_message(context, given):
            return answer
        waiting = resources.user_messages.size(context)
        if waiting >= self.options.max_queued_messages:
            return RPCResult(encode({"refused": "queue_full", "waiting": waiting}))
        # The Channel alone does not show a message that the next turn has taken but not begun with.
        digest = message_digest(given["id"])
        resources.accepted.set(context, digest, encode(content_digest(given)))
        resources.user_messages.publish(context, message)
        _failpoints.reach("send.before_commit", context.flow_id)
        return RPCResult(encode({}))

    @rpc(name="steer_user_message", load_attribute_maps=(resources.steering,))
    def steer_user_message_rpc(self, context: Context, message: bytes) -> RPCResult[bytes]:
        """Queue a message for the open turn; lock and entry as of ``send_user_message``."""
        given = decode(message)
        if answer := _refused(context) or _known_message(context, given):
            return answer
        waiting = resources.user_messages.size(context)
        if waiting >= self.options.max_queued_messages:
            return RPCResult(encode({"refused": "queue_full", "waiting": waiting}))
        waiting = steering.count_waiting(context)
        if waiting >= steering.MAX_WAITING:
            return RPCResult(encode({"refused": "steering_full", "waiting": waiting}))
        steering.add(context, given, now_ms())
        return RPCResult(encode({}))

    @rpc(
        name="get_agent_snapshot",
        load_attribute_maps=(resources.interrupts, resources.accepted, resources.last_turn),
    )
    def get_agent_snapshot_rpc(self, context: Context) -> RPCResult[bytes]:
        """Where the session stands."""
        stored = resources.header.get(context)
        header = Header.from_json(decode(stored)) if stored else Header()
        closing = resources.closing.get(context)
        if is_incomplete(context) and not closing:
            return _INCOMPLETE
        pending = []
        for key in sorted(resources.interrupts.get_all_instance_keys(context), key=_natural):
            interrupt = StoredInterrupt.from_json(decode(resources.interrupts.get(context, key)))
            is_open = interrupt.turn_id == header.turn_id
            if (
                is_open
                and not closing
                and interrupt.is_pending
                and not _is_ending(context, interrupt)
            ):
                pending.append(_shown(interrupt))
        last = resources.last_turn.get(context, resources.LAST_TURN_KEY)
        accepted = list(resources.accepted.get_all_instance_keys(context))
        return RPCResult(
            encode(
                {
                    "turn_id": header.turn_id,
                    "is_starting": not stored,
                    "turns_done": resources.turns_done.get(context) or 0,
                    "revision": resources.revision.get(context) or 0,
                    "usage": asdict(header.usage),
                    "last_turn": decode(last) if last else None,
                    "removed": header.removed,
                    "forked_from": read_fork(context)["fork"],
                    "cancelled_turn": header.cancelled_turn,
                    "closing": decode(closing) if closing else None,
                    "pending_interrupts": pending,
                    "queued_messages": len(accepted),
                    "accepted": accepted,
                    "message_turns": header.turns_of_messages(),
                }
            )
        )

    @rpc(name="resolve_interrupt")
    def resolve_interrupt_rpc(self, context: Context, answer: bytes) -> RPCResult[bytes]:
        """Answer an interrupt; the caller locks and loads it, and loads its mark."""
        if refused := _refused(context):
            return refused
        given = decode(answer)
        interrupt_id = given["interrupt_id"]
        taken = interrupts.has_taken(context, interrupt_id, given)
        if taken is not None:
            return RPCResult(encode({} if taken else {"refused": "id_reused"}))
        interrupt = interrupts.find(context, interrupt_id)
        if interrupt is None or _is_ending(context, interrupt) or not _is_open(context, interrupt):
            why = interrupts.why_gone(context, interrupt_id)
            return RPCResult(encode({"refused": "not_pending", "why": why}))
        if interrupt.answer is not None:
            return RPCResult(encode({"refused": "already_answered"}))
        if interrupt.deadline_ms is not None and now_ms() >= interrupt.deadline_ms:
            return RPCResult(encode({"refused": "expired"}))
        if refusal := _misfit(interrupt, given):
            return RPCResult(encode({"refused": "misfit", "why": refusal}))
        digest = given.get("arguments_digest")
        if digest and digest != arguments_digest(interrupt.tool_name, interrupt.arguments):
            return RPCResult(encode({"refused": "arguments_differ"}))
        if interrupt.kind == InterruptKind.CREDENTIAL and "credential" in given:
            interrupt.answer = {"credential": given["credential"]}
        elif "value" in given:
            interrupt.answer = {"value": given["value"]}
        else:
            names = ("approved", "message", "payload", "arguments")
            interrupt.answer = {name: given.get(name) for name in names}
        resources.interrupts.set(context, interrupt_id, encode(interrupt.to_json()))
        interrupts.note_answer(context, interrupt_id, given)
        resources.answers.publish(context, interrupt_id, encode({}))
        _failpoints.reach("answer.before_commit", context.flow_id)
        return RPCResult(encode({}))

    @rpc(name="cancel_turn", lock_attributes=(resources.header.lock(),))
    def cancel_turn_rpc(self, context: Context, request: bytes) -> RPCResult[bytes]:
        """End the open turn, whichever it is or only the given one; answers which.

        An RPC sees the session as it was when it was called, so what the turn's calls did is left
        to a Step, which nothing of the turn can run beside. The lock keeps the next turn from
        opening meanwhile; its Steps would be cancelled too.
        """
        if refused := _refused(context):
            return refused
        wanted = decode(request)["turn_id"]
        stored = resources.header.get(context)
        header = Header.from_json(decode(stored)) if stored else Header()
        turn_id = header.turn_id
        if wanted and wanted == header.cancelled_turn:
            return RPCResult(encode({"turn_id": wanted}))  # asked again, its answer was lost
        if not turn_id or wanted not in (None, turn_id):
            return RPCResult(encode({"turn_id": ""}))
        resources.cancel_asked.set(context, turn_id)
        return RPCResult(
            encode({"turn_id": turn_id}), (step_options.cancel_turn(turn_id),)
        ).with_canceling_steps(*TURN_STEPS, CancelTurn)

    @rpc(name="close_session")
    def close_session_rpc(self, context: Context, request: bytes) -> RPCResult[bytes]:
        """End the session with whatever is open in it.

        Without a lock: it cancels every Step, so it does not matter which turn is open by then.
        """
        stored = resources.closing.get(context)
        reason = decode(stored or request)["reason"]
        if not stored:
            resources.closing.set(context, encode({"reason": reason}))
        return RPCResult(encode({}), (step_options.close_session(reason),)).with_canceling_steps(
            *TURN_STEPS, AwaitUserMessage, CancelTurn, CloseSession
        )

    @rpc(
        name="rewind",
        lock_attributes=(resources.header.lock(),),
        load_attribute_maps=(resources.accepted, resources.summary_marks),
    )
    def rewind_rpc(self, context: Context, request: bytes) -> RPCResult[bytes]:
        """Remove the newest turns, from a given one on; the caller loads its entry in ``rewinds``.

        The lock keeps the next turn from opening meanwhile.
        """
        if is_incomplete(context):
            return _INCOMPLETE
        return RPCResult(encode(rewind(context, decode(request))))

    @rpc(
        name="read_branch",
        load_attribute_maps=(resources.summary_marks, resources.removal_note),
    )
    def read_branch_rpc(self, context: Context) -> RPCResult[bytes]:
        """Which turns count and what stands for older ones, for a client that goes back."""
        if is_incomplete(context):
            return _INCOMPLETE
        return RPCResult(encode(read_branch(context)))

    @rpc(name="read_summary")
    def read_summary_rpc(self, context: Context, request: bytes) -> RPCResult[bytes]:
        """The summary of the given name, for a fork; the caller loads it."""
        stored = resources.summaries.get(context, decode(request)["key"])
        return RPCResult(stored if stored else encode(None))

    @rpc(name="read_fork")
    def read_fork_rpc(self, context: Context) -> RPCResult[bytes]:
        """What the session was forked from."""
        return RPCResult(encode(read_fork(context)))

    @rpc(name="take_piece")
    def take_piece_rpc(self, context: Context, request: bytes) -> RPCResult[bytes]:
        """Store a piece of what a forked session starts with."""
        take_piece(context, decode(request))
        return RPCResult(encode({}))

    @rpc(name="read_pages")
    def read_pages_rpc(self, context: Context, request: bytes) -> RPCResult[bytes]:
        """Messages of the given turns in the given order, as many turns as fit.

        The caller loads their pages. A turn whose page is gone has no messages. A caller that also
        loads how the turns ended gets that, too.
        """
        wanted = decode(request)
        pages: list[Any] = []
        size = 0
        for key in wanted["keys"]:
            data = resources.messages.get(context, key)
            messages = [message_to_json(item) for item in read_page(data)] if data else []
            outcome = resources.read_outcome(context, int(key))
            size += len(encode(messages)) + len(outcome or b"")
            if pages and size > wanted["max_bytes"]:
                break
            page = {"key": key, "messages": messages}
            pages.append({**page, "outcome": decode(outcome)} if outcome else page)
        return RPCResult(encode(pages))


_CLOSED = RPCResult(encode({"refused": "closed"}))
_INCOMPLETE = RPCResult(encode({"refused": "incomplete"}))


def _refused(context: Context) -> RPCResult[bytes] | None:
    """Of a session that takes no command."""
    if resources.closing.get(context):
        return _CLOSED
    return _INCOMPLETE if is_incomplete(context) else None


def _known_message(context: Context, given: dict[str, Any]) -> RPCResult[bytes] | None:
    """The answer to a message whose id was used before."""
    stored = resources.accepted.get(context, message_digest(given["id"]))
    if stored:
        content = decode(stored) or ""
    else:
        header = resources.header.get(context)
        content = Header.from_json(decode(header)).content_of(given["id"]) if header else None
    if content is None:
        return None
    if content not in ("", content_digest(given)):
        return RPCResult(encode({"refused": "id_reused"}))
    return RPCResult(encode({}))


def _is_open(context: Context, interrupt: StoredInterrupt) -> bool:
    """Whether the turn that asked is the open one."""
    stored = resources.header.get(context)
    return bool(stored) and Header.from_json(decode(stored)).turn_id == interrupt.turn_id


def _misfit(interrupt: StoredInterrupt, given: dict[str, Any]) -> str:
    """Why an answer is not one to this interrupt, or empty."""
    if interrupt.kind == InterruptKind.APPROVAL:
        is_approval = "value" not in given and "credential" not in given
        return "" if is_approval else "asks for an approval; use resolve_interrupt(approved=...)"
    if interrupt.kind == InterruptKind.CREDENTIAL:
        return _misfit_credential(interrupt, given)
    if "value" not in given:
        return f"asks for an answer of kind {interrupt.kind}; use answer_question"
    value = given["value"]
    if isinstance(value, dict) and set(value) == {"result"} and given.get("is_wrapped"):
        value = value["result"]
    return _misfit_schema(interrupt, value)


def _misfit_credential(interrupt: StoredInterrupt, given: dict[str, Any]) -> str:
    if "credential" in given:
        return _misfit_schema(interrupt, given["credential"])
    if "value" in given or given.get("approved"):
        return (
            "asks for a credential; use provide_credential, or resolve_interrupt(approved=False) "
            "to withhold it"
        )
    return ""


def _misfit_schema(interrupt: StoredInterrupt, value: Any) -> str:
    if interrupt.response_schema is None:
        return ""
    try:
        jsonschema.validate(value, interrupt.response_schema)
    except jsonschema.ValidationError as error:
        where = "".join(f"{part}: " for part in error.absolute_path)
        return f"asks for an answer of another form: {where}{error.message}"
    except jsonschema.SchemaError:
        return ""  # what the schema means is not known, so any answer is one
    return ""


def _natural(key: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _is_ending(context: Context, interrupt: StoredInterrupt) -> bool:
    return bool(resources.cancel_asked.get(context) == interrupt.turn_id)


def _shown(interrupt: StoredInterrupt) -> dict[str, Any]:
    shown = interrupt.to_json()
    shown["arguments_digest"] = arguments_digest(interrupt.tool_name, interrupt.arguments)
    del shown["answer"]
    return dict(shown)
