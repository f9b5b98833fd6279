"""The Step that summarizes older turns before a turn's first model call."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from dex import AsyncContext, StepDecision, go_to_many

from dex_agents import _failpoints
from dex_agents._contract import AgentMessage, CompactionRequest, HistoryCompactor, HistorySummary
from dex_agents._session import resources, step_options
from dex_agents._session.compaction import CompactionPolicy, size_of, size_of_summary
from dex_agents._session.encoding import decode, encode
from dex_agents._session.events import StepEvents
from dex_agents._session.failures import RUNNER_FAILURES, describe, model_failure
from dex_agents._session.heartbeat import keep_alive
from dex_agents._session.live_turns import live_turns
from dex_agents._session.outcomes import encoded
from dex_agents._session.pages import read_summary, read_turns
from dex_agents._session.records import Header, Round, summary_to_json
from dex_agents._session.session_step import SessionStep, attempt_place
from dex_agents._session.turn_end import read_header, write_header
from dex_agents._tracing import describe_model_call, end_without_answer

if TYPE_CHECKING:
    from dex_agents._session.flow import AgentSessionFlow

_LOGGER = logging.getLogger("dex_agents")


def needs_compaction(flow: AgentSessionFlow, header: Header) -> bool:
    """Whether a turn that begins now goes through ``CompactHistory``.

    A session of an older release does not know its size; the Step finds out.
    """
    policy, compactor = flow.compaction, flow.runner
    if policy is None or not isinstance(compactor, HistoryCompactor):
        return False
    if len(header.live_turns(header.summarized_turns + 1)) <= policy.kept_turns:
        return False
    if header.history_bytes is None:
        return True
    return policy.is_due(header.history_bytes, _overhead(compactor))


def _overhead(compactor: HistoryCompactor) -> int:
    try:
        return max(0, int(compactor.estimated_overhead_tokens()))
    except RUNNER_FAILURES as error:
        _LOGGER.warning("the size of instructions and tools is not known: %s", describe(error))
        return 0


def _forget(context: AsyncContext, header: Header, through: int, retained: int) -> None:
    """Delete pages that a summary stands for, and summaries that need them."""
    summarized = live_turns(header.removed, 1, through)
    if len(summarized) <= retained:
        return
    forgotten = summarized[-retained - 1]
    for number in range(header.forgotten_turns + 1, forgotten + 1):
        resources.messages.delete(context, resources.page_key(number))
        resources.outcomes.delete(context, resources.page_key(number))
    header.forgotten_turns = max(forgotten, header.forgotten_turns)
    for key in resources.summary_marks.get_all_instance_keys(context):
        if int(key) < forgotten:
            resources.summaries.delete(context, key)
            resources.summary_marks.delete(context, key)


class CompactHistory(SessionStep):
    """Asks for a summary of the older turns and stores it; the turn goes on in any case."""

    async def execute(  # type: ignore[override]
        self, context: AsyncContext, input: bytes
    ) -> StepDecision:
        before = Round.from_json(decode(input))
        header = read_header(context)
        policy, compactor = self._flow.compaction, self._flow.runner
        if policy is not None and isinstance(compactor, HistoryCompactor):
            await self._compact(context, header, before, policy, compactor)
        after = replace(before, summarized_turns=header.summarized_turns)
        return go_to_many(step_options.run_model(self._flow.options, after))

    async def _compact(
        self,
        context: AsyncContext,
        header: Header,
        before: Round,
        policy: CompactionPolicy,
        compactor: HistoryCompactor,
    ) -> None:
        turns = header.live_turns(header.summarized_turns + 1)
        old_turns = turns[: max(0, len(turns) - policy.kept_turns)]
        # Page 0 holds what the session was given at its creation.
        old = read_turns(context, old_turns if header.summarized_turns else [0, *old_turns])
        kept = size_of(read_turns(context, turns[len(old_turns) :]))
        size = size_of_summary(read_summary(context, before)) + size_of(old) + kept
        header.history_bytes = size
        write_header(context, header)
        if not old_turns or not policy.is_due(size, _overhead(compactor)):
            return
        try:
            if compactor.blocks_compaction(old):
                return
        except RUNNER_FAILURES as error:
            raise model_failure(error) from None
        summary = await self._ask(context, before, old, compactor)
        stored = encoded("the summary", summary_to_json(summary))
        through = old_turns[-1]
        resources.summaries.set(context, resources.page_key(through), stored)
        resources.summary_marks.set(context, resources.page_key(through), encode(None))
        if policy.retained_turns is not None:
            _forget(context, header, through, policy.retained_turns)
        header.summarized_turns = through
        header.history_bytes = size_of_summary(summary) + kept
        header.usage += summary.usage
        write_header(context, header)

    async def _ask(
        self,
        context: AsyncContext,
        before: Round,
        old: list[AgentMessage],
        compactor: HistoryCompactor,
    ) -> HistorySummary:
        events = StepEvents(self._flow.event_stream, context, before.turn_id)
        events.emit("compaction_started", messages=len(old))
        request = CompactionRequest(
            session_id=context.flow_id,
            step_execution_id=context.step_execution_id,
            summary=read_summary(context, before),
            messages=old,
        )
        _failpoints.reach("compaction.before_call", context.flow_id)
        span = self._flow.tracer.chat(
            attempt_place(context, before.turn_id), is_compacted=request.summary is not None
        )
        try:
            summary = await keep_alive(
                context.heartbeat,
                self._flow.options.heartbeat_timeout.total_seconds(),
                compactor.summarize(request),
            )
            _failpoints.reach("compaction.after_call", context.flow_id)
            if not isinstance(summary, HistorySummary) or not summary.text.strip():
                raise ValueError("the summary is empty")
            describe_model_call(span, summary.metadata, summary.usage)
            span.end()
            events.emit("compaction_finished")
        except RUNNER_FAILURES as error:
            failure = model_failure(error)
            end_without_answer(span, type(error).__name__, str(failure))
            events.emit("compaction_failed", error=describe(error))
            raise failure from None
        finally:
            end_without_answer(span, "cancelled")
            events.close()
        return summary
