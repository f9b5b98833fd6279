"""The client of agent sessions. It needs no Worker in its process."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from dex import AsyncClient, RPCResult

from dex_agents._contract import ImageMessageBuilder, Json, StateMessageBuilder
from dex_agents._errors import InvalidInputError
from dex_agents._media.reference import ImageReference, reference_to_json
from dex_agents._session import checks, commands, forking, going_back, reading, waiting
from dex_agents._session.connection import SessionConnection
from dex_agents._session.flow import AgentSessionFlow
from dex_agents._session.steering import MAX_STEERING_BYTES
from dex_agents._session.views import (
    AgentEventBatch,
    AgentSnapshot,
    ClosedSession,
    ForkedSession,
    MessagePage,
    RewoundSession,
)


class AgentSessionClient:
    """Starts sessions, sends messages, answers interrupts, reads history and live events.

    Args:
        client: A connected ``dex.AsyncClient`` whose Registry holds ``flow``.
        flow: The same Flow that the Workers serve.
    """

    def __init__(self, client: AsyncClient, flow: AgentSessionFlow) -> None:
        if not isinstance(client, AsyncClient):
            raise TypeError(f"client must be a dex.AsyncClient, got {type(client).__name__}")
        if not isinstance(flow, AgentSessionFlow):
            raise TypeError(f"flow must be an AgentSessionFlow, got {type(flow).__name__}")
        self._connection = SessionConnection(client, flow)
        self._flow = flow
        self._max_bytes = flow.options.max_message_bytes

    async def start_session(
        self,
        session_id: str,
        text: str,
        *,
        images: Sequence[ImageReference] = (),
        state: Mapping[str, Json] | None = None,
        message_id: str | None = None,
    ) -> None:
        """Start a session with its first user message. The same call again changes nothing.

        Args:
            images: What ``put_image`` of the Flow's media store gave, in order.
            message_id: Id of the message, as in :meth:`send_user_message`, which does not take it
                again. The same call again has the same one.
            state: What the framework's session state begins with, as JSON; stays through rewinds
                and goes along with forks.

        Raises:
            SessionAlreadyExistsError: The id was used before with another first message or state.
            InvalidInputError: An argument is refused; nothing was stored.
            SessionUnavailableError: No engine answered in time; call again. It needs no Worker.
        """
        checks.check_session_id(session_id)
        self._check_text("text", text)
        shown = self._checked_images(images)
        if state is not None:
            self._check_state(state)
        if message_id is not None:
            checks.check_command_id("message_id", message_id)
        await commands.start(self._connection, session_id, text, shown, state, message_id)

    async def send_user_message(
        self,
        session_id: str,
        text: str,
        *,
        images: Sequence[ImageReference] = (),
        message_id: str | None = None,
    ) -> str:
        """Queue a message; it opens the next turn. Returns its id.

        Args:
            images: What ``put_image`` of the Flow's media store gave, in order.
            message_id: Hand the same id again to repeat a call whose answer was lost: the message
                counts once (among the newest 64 of the session).

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: The text or an id is refused, or too many messages wait; nothing was
                stored.
            RequestIdReusedError: The id was used for another message; nothing was stored.
            SessionUnavailableError: No Worker or no engine took it in time; send it again with its
                ``command_id`` as ``message_id``.
        """
        checks.check_session_id(session_id)
        self._check_text("text", text)
        shown = self._checked_images(images)
        rpc = self._flow.send_user_message_rpc
        return await self._send(rpc, session_id, message_id, text, shown)

    async def steer_user_message(
        self, session_id: str, text: str, *, message_id: str | None = None
    ) -> str:
        """Send a message into the open turn; its next model call reads it. Returns its id.

        A model call or tool that runs goes on. A session that is idle, or whose turn ends before a
        model call has read it, opens a turn with it, as with :meth:`send_user_message`: nothing that
        was taken is lost.

        Args:
            text: At most 16 KiB as UTF-8.
            message_id: As in :meth:`send_user_message`.

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: The text or an id is refused, or too many messages wait; nothing was
                stored.
            RequestIdReusedError: The id was used for another message; nothing was stored.
            SessionUnavailableError: No Worker or no engine took it in time; send it again with its
                ``command_id`` as ``message_id``.
        """
        checks.check_session_id(session_id)
        self._check_text("text", text)
        checks.check_steering_size(text, MAX_STEERING_BYTES)
        return await self._send(self._flow.steer_user_message_rpc, session_id, message_id, text)

    async def _send(
        self,
        rpc: Callable[..., RPCResult[bytes]],
        session_id: str,
        message_id: str | None,
        text: str,
        images: Sequence[Json] = (),
    ) -> str:
        if message_id is None:
            message_id = uuid.uuid4().hex
        checks.check_command_id("message_id", message_id)
        await commands.send(self._connection, rpc, session_id, message_id, text, images)
        return message_id

    async def get_message_turn(self, session_id: str, message_id: str) -> str | None:
        """Id of the turn that took a message: that it opened, or in which a model call read it.

        Empty while the message waits. ``None`` if it is not among the newest 64 of the session, or
        was taken by a Worker of a release that did not keep its turn.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: An id is refused.
            SessionUnavailableError: No Worker or no engine answered in time.
        """
        checks.check_session_id(session_id)
        checks.check_command_id("message_id", message_id)
        return await reading.turn_of_message(self._connection, session_id, message_id)

    async def get_agent_snapshot(self, session_id: str) -> AgentSnapshot:
        """Where the session stands now.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: The session id is refused, or is one of another Flow type.
            SessionUnavailableError: No Worker or no engine answered in time.
        """
        checks.check_session_id(session_id)
        return await reading.snapshot(self._connection, session_id)

    async def cancel_turn(self, session_id: str, *, turn_id: str | None = None) -> bool:
        """End the open turn at once; messages that wait then open the next one.

        The model call and the tools of the turn are stopped, except what runs in a thread. Its
        interrupts vanish. A call without a record that may have run counts as failed if it only
        reads, else its outcome is unknown; the next turn's model is told. Harmless when no turn is
        open.

        Args:
            turn_id: ``snapshot.turn_id`` of the turn that is meant; another one is left alone. The
                same call again says the same. Without it the turn that is open now is meant.

        Returns:
            Whether a cancel ended the turn; of several at once each says so. ``False``: no turn
            was open, it was another one, or it ended by itself at this moment.

        Raises:
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: An argument is refused.
            SessionUnavailableError: No Worker or no engine answered in time; the turn may have been
                stopped. Call again with its ``command_id`` as ``turn_id``.
        """
        checks.check_session_id(session_id)
        if turn_id is not None:
            checks.check_turn_id(turn_id)
        return await commands.cancel(self._connection, session_id, turn_id)

    async def close_session(self, session_id: str, *, reason: str = "") -> ClosedSession:
        """End the session. To close it again changes nothing and answers the same.

        An open turn is cancelled as by :meth:`cancel_turn`; messages that wait for theirs are
        dropped and counted. History and snapshot stay readable, every other command is refused from
        now on, and the session id cannot be used again.

        Args:
            reason: Shown in the snapshot; at most 900 bytes of it are kept.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: An argument is refused.
            SessionUnavailableError: No Worker or no engine answered in time; call again.
        """
        checks.check_session_id(session_id)
        checks.check_reason(reason)
        return await commands.close(self._connection, session_id, reason)

    async def resolve_interrupt(
        self,
        session_id: str,
        interrupt_id: str,
        *,
        approved: bool,
        message: str | None = None,
        payload: Json = None,
        arguments_digest: str | None = None,
        arguments: Mapping[str, Json] | None = None,
        answer_id: str | None = None,
    ) -> None:
        """Answer a pending approval; the answer acts once.

        Args:
            approved: Whether the call may run.
            payload: What a tool that asked for the approval itself gets with it, as JSON.
            message: What the model reads of a rejection.
            arguments_digest: ``PendingInterrupt.arguments_digest`` of what was shown; the answer is
                refused if the call's arguments are others.
            arguments: Approves the call with these arguments in place of the model's; at most 64 KiB
                of JSON. The model sees both.
            answer_id: Hand the same id again to repeat a call whose own answer was lost: it counts
                once, and is no second answer, up to the end of the turn after.

        Raises:
            InterruptError: It is not pending, was already answered (also with the same answer, unless
                its ``answer_id`` is given again), has expired, or is another one than shown; nothing
                changed, and the text says which.
            RequestIdReusedError: ``answer_id`` was used for another answer to it, which counts.
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: An argument is refused; nothing was stored.
            SessionUnavailableError: No Worker or no engine took it in time; call again with its
                ``command_id`` as ``answer_id``.
        """
        checks.check_session_id(session_id)
        checks.check_interrupt_id(interrupt_id)
        checks.check_approved(approved)
        if message is not None:
            self._check_text("message", message)
        self._check_json("payload", payload)
        if arguments_digest is not None:
            checks.check_digest(arguments_digest)
        if arguments is not None:
            checks.check_arguments(arguments, approved)
        given = {
            "approved": approved,
            "message": message,
            "payload": payload,
            "arguments_digest": arguments_digest,
            "arguments": None if arguments is None else dict(arguments),
        }
        await self._answer(session_id, interrupt_id, answer_id, given)

    async def answer_question(
        self, session_id: str, interrupt_id: str, answer: Json, *, answer_id: str | None = None
    ) -> None:
        """Answer a pending interrupt that asks for more than an approval; the answer acts once.

        Args:
            answer: A JSON object, or a number, text, list or truth value, which the agent gets as
                ``{"result": answer}``. ``None`` is no answer.
            answer_id: As in :meth:`resolve_interrupt`.

        Raises:
            InterruptError: It is not pending, was already answered, has expired, asks for an
                approval, or the answer does not fit its ``response_schema``; nothing changed.
            SessionNotFoundError, SessionClosedError, InvalidInputError, SessionUnavailableError,
            RequestIdReusedError: As in :meth:`resolve_interrupt`.
        """
        checks.check_session_id(session_id)
        checks.check_interrupt_id(interrupt_id)
        checks.check_answer(answer, self._max_bytes)
        is_wrapped = not isinstance(answer, dict)
        value = {"result": answer} if is_wrapped else answer
        given = {"value": value, "is_wrapped": is_wrapped}
        await self._answer(session_id, interrupt_id, answer_id, given)

    async def provide_credential(
        self,
        session_id: str,
        interrupt_id: str,
        reference: str,
        *,
        state: str | None = None,
        answer_id: str | None = None,
    ) -> None:
        """Say where a credential is that a pending interrupt asks for; the answer acts once.

        The secret itself never enters the session: keep it where the Workers' credential resolver
        finds it, and give its name here.

        Args:
            reference: The name under which the application keeps the secret.
            state: Of an authorization, the ``state`` that its callback came with.
            answer_id: As in :meth:`resolve_interrupt`.

        Raises:
            InterruptError: It is not pending, was already answered, has expired, asks for something
                else, or the state is not that of its own request; nothing changed.
            InvalidInputError: An argument is refused, for example a reference that looks like the
                secret itself; nothing was stored.
            SessionNotFoundError, SessionClosedError, SessionUnavailableError, RequestIdReusedError:
                As in :meth:`resolve_interrupt`.
        """
        checks.check_session_id(session_id)
        checks.check_interrupt_id(interrupt_id)
        credential = {"reference": checks.check_reference(reference)}
        if state is not None:
            checks.check_text("state", state, checks.MAX_STATE_BYTES)
            credential["state"] = state
        given: dict[str, Json] = {"credential": credential}
        await self._answer(session_id, interrupt_id, answer_id, given)

    async def _answer(
        self, session_id: str, interrupt_id: str, answer_id: str | None, given: dict[str, Json]
    ) -> None:
        if answer_id is None:
            answer_id = uuid.uuid4().hex
        checks.check_command_id("answer_id", answer_id)
        await commands.answer_interrupt(
            self._connection, session_id, interrupt_id, answer_id, given
        )

    async def rewind(
        self,
        session_id: str,
        before_turn_id: str,
        *,
        expected_last_turn_id: str | None = None,
        request_id: str | None = None,
    ) -> RewoundSession:
        """Go back to before a turn: it and all later ones count no more.

        The next turn reads history, state, summaries and artifacts as they were then, and gets an id
        of its own. Removed turns stay stored, see :meth:`list_messages`. What their tools did is not
        undone, and tokens they took stay counted.

        Args:
            before_turn_id: Id of a finished turn, as messages and snapshots name it.
            expected_last_turn_id: The newest turn that the caller has seen. If a newer one has ended
                since, nothing is removed; without it such a turn is removed too.
            request_id: Hand the same id again to repeat a call whose answer was lost: it acts once
                and answers the same.

        Raises:
            NewerTurnError: A turn newer than ``expected_last_turn_id`` has ended; nothing changed.
            TurnOpenError: A turn is open, or a message waits for its own; nothing changed.
            TurnTargetError: There is no such turn, none before it, or what the model read then is
                gone; nothing changed.
            RequestIdReusedError: The request id has rewound the session to another turn.
            SessionNotFoundError, SessionClosedError: There is no open session of this id; a closed
                one can be forked.
            InvalidInputError: An argument is refused; nothing was stored.
            SessionUnavailableError: No Worker or no engine took it in time; call it again with the
                same ``request_id``.
        """
        checks.check_session_id(session_id)
        self._check_text("before_turn_id", before_turn_id)
        if expected_last_turn_id is not None:
            self._check_text("expected_last_turn_id", expected_last_turn_id)
        if request_id is None:
            request_id = uuid.uuid4().hex
        checks.check_command_id("request_id", request_id)
        return await going_back.rewind(
            self._connection, session_id, before_turn_id, expected_last_turn_id, request_id
        )

    async def fork_session(
        self,
        session_id: str,
        new_session_id: str,
        *,
        before_turn_id: str | None = None,
        after_turn_id: str | None = None,
    ) -> ForkedSession:
        """Make a session of the turns of another one, which stays as it is.

        The new session has history, state, summary and artifacts as they were at the end of its last
        turn, and the same turn ids; nothing that happens in one of the two reaches the other. An open
        turn of the source is no obstacle, and a closed source is none. Called again with the same
        arguments it changes nothing and answers the same; if a call broke off, it is completed.
        Until then there is no session of the new id.

        Args:
            before_turn_id: The new session ends before this finished turn.
            after_turn_id: The new session ends with this finished turn. With neither it has all.

        Raises:
            TurnTargetError: There is no such turn, none before it, or what the model read then is
                gone.
            SessionAlreadyExistsError: The new id was used before, with another source or turn.
            SessionNotFoundError: There is no session ``session_id``.
            InvalidInputError: An argument is refused; nothing was stored.
            SessionUnavailableError: No Worker or no engine took it in time; call it again.
        """
        checks.check_session_id(session_id)
        checks.check_session_id(new_session_id, "new_session_id")
        checks.check_one_of(before_turn_id=before_turn_id, after_turn_id=after_turn_id)
        for name, turn_id in (("before_turn_id", before_turn_id), ("after_turn_id", after_turn_id)):
            if turn_id is not None:
                self._check_text(name, turn_id)
        return await forking.fork(
            self._connection, session_id, new_session_id, before_turn_id, after_turn_id
        )

    async def list_messages(
        self,
        session_id: str,
        *,
        before_turn: int | None = None,
        turns: int = 20,
        include_removed: bool = False,
    ) -> MessagePage:
        """Stored messages of finished turns: the newest ones, or those before ``before_turn``.

        Args:
            before_turn: Number of the turn to end before; ``next_before_turn`` of another page.
            turns: How many turns at most; fewer come when they are large.
            include_removed: Whether turns that a rewind has removed come too.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: ``turns`` is not 1 to 100, ``before_turn`` not 1 to one more than the
                turns that are done, or another argument is refused.
            SessionUnavailableError: No Worker or no engine answered in time.
        """
        checks.check_session_id(session_id)
        checks.check_page(before_turn, turns)
        checks.check_flag("include_removed", include_removed)
        return await reading.message_page(
            self._connection, session_id, before_turn, turns, include_removed=include_removed
        )

    async def read_events(
        self, session_id: str, *, resume_token: str = ""
    ) -> AsyncIterator[AgentEventBatch]:
        """Live events from the oldest that is kept, or from behind a token.

        Goes on until the session is closed; stop by leaving the loop. Events are hints for people
        who watch: an answer counts when ``wait_for_turn`` or a snapshot shows it.

        Raises:
            SessionNotFoundError: There is no session of this id.
            InvalidInputError: The session id or the token is refused.
            SessionUnavailableError: The engine went away; read on from the newest token.
        """
        checks.check_session_id(session_id)
        checks.check_resume_token(resume_token)
        async for batch in reading.events(self._connection, session_id, resume_token):
            yield batch

    async def wait_for_turn(
        self, session_id: str, turns_done: int, *, timeout_s: float
    ) -> AgentSnapshot:
        """Wait until so many turns have ended. Needs no Worker while it waits.

        Args:
            turns_done: Number of the turn whose end is waited for, 0 for none. Turns that a rewind
                has removed count.
            timeout_s: Seconds, at most a year.

        Raises:
            TurnWaitTimeoutError: They have not within ``timeout_s`` seconds; the session goes on. It
                comes up to 2 seconds late, as it says what the session waits for.
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: An argument is refused.
            SessionUnavailableError: The engine is away, or the turns have ended and no Worker shows
                how the session stands.
        """
        checks.check_session_id(session_id)
        checks.check_wait(turns_done, timeout_s)
        await waiting.wait_for_turns(self._connection, session_id, turns_done, timeout_s)
        return await reading.stored_snapshot(self._connection, session_id)

    async def wait_until_settled(
        self, session_id: str, *, turns_done: int, timeout_s: float
    ) -> AgentSnapshot:
        """Wait until so many turns have ended, or the session waits for a person.

        Args:
            turns_done, timeout_s: As in :meth:`wait_for_turn`.

        Raises:
            TurnWaitTimeoutError: Neither happened in ``timeout_s`` seconds, or no Worker answered in
                them; the session goes on.
            SessionUnavailableError: The engine is away.
            SessionNotFoundError, SessionClosedError: There is no open session of this id.
            InvalidInputError: An argument is refused.
        """
        checks.check_session_id(session_id)
        checks.check_wait(turns_done, timeout_s)
        return await waiting.wait_until_settled(self._connection, session_id, turns_done, timeout_s)

    def _check_text(self, name: str, text: object) -> None:
        checks.check_text(name, text, self._max_bytes)

    def _check_json(self, name: str, value: object) -> None:
        checks.check_json(name, value, self._max_bytes)

    def _check_state(self, state: Mapping[str, Json]) -> None:
        checks.check_state(state, self._max_bytes)
        runner = self._flow.runner
        if not isinstance(runner, StateMessageBuilder):
            raise InvalidInputError(
                f"the runner, a {type(runner).__name__}, has no session state; leave state out"
            )
        try:
            runner.build_state_message(state)
        except ValueError as error:
            raise InvalidInputError(f"state is refused: {error}") from None

    def _checked_images(self, images: Sequence[ImageReference]) -> list[Json]:
        is_image_flow = isinstance(self._flow.runner, ImageMessageBuilder)
        checks.check_images(images, takes_images=is_image_flow)
        return [reference_to_json(image) for image in images]
