"""What a paused turn keeps between two ``RunModel`` Steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dex_agents._contract import Json, ToolCallRecord
from dex_agents._errors import AgentTurnError
from dex_agents._stored_record import record_from_json, record_to_json

_VERSION = 1


class CallKind(StrEnum):
    """How a call of a paused response gets its result when the turn goes on."""

    STEP = "step"
    """From the record of its tool Step."""
    SETTLED = "settled"
    """Answered while the response was handled (guardrail, unknown name); the answer is kept here.
    """
    NATIVE = "native"
    """A control tool beside ordinary calls: ADK runs it once the other results are there."""
    RECORDED = "recorded"
    """From the record that is kept here, because a call beside it paused once more."""


@dataclass(frozen=True)
class PausedCall:
    """One call of a paused response.

    Attributes:
        call_id: Id of the call, unique within its event.
        kind: Where the result comes from.
        tool_name: The tool as the model called it.
        arguments: Arguments after the ``before_tool_callback`` chain, ``None`` if they are the
            model's.
        actions: What callbacks did to the call's context before the pause.
        response: The function response part of a settled call.
        record: The record of a recorded call.
        begun: Whether the call runs a sub-agent that has begun, so that its callbacks are done.
    """

    call_id: str
    kind: CallKind
    tool_name: str
    arguments: dict[str, Json] | None = None
    actions: dict[str, Json] = field(default_factory=dict)
    response: Json = None
    record: ToolCallRecord | None = None
    begun: bool = False

    def to_json(self) -> Json:
        item: dict[str, Json] = {
            "id": self.call_id,
            "kind": self.kind.value,
            "tool": self.tool_name,
        }
        if self.arguments is not None:
            item["arguments"] = self.arguments
        if self.actions:
            item["actions"] = self.actions
        if self.response is not None:
            item["response"] = self.response
        if self.record is not None:
            item["record"] = record_to_json(self.record)
        if self.begun:
            item["begun"] = True
        return item

    @staticmethod
    def from_json(item: Any) -> PausedCall:
        return PausedCall(
            call_id=item["id"],
            kind=CallKind(item["kind"]),
            tool_name=item["tool"],
            arguments=item.get("arguments"),
            actions=item.get("actions") or {},
            response=item.get("response"),
            record=record_from_json(item["record"]) if item.get("record") else None,
            begun=bool(item.get("begun")),
        )


@dataclass(frozen=True)
class PausedEvent:
    """One model response whose calls wait.

    Attributes:
        event_id: Id of the stored call event.
        agent_name: The agent that made the calls.
        branch: ADK's branch of the event.
        calls: All calls of the event in the model's order.
        tasks: Ids of the calls that hand a task to a sub-agent.
        node_path: ADK's path of the node that made the event, or empty.
        inline: Ids of the calls that run a sub-agent.
        tasks_first: Whether ADK comes to the other calls only when the tasks are done.
        mixed: Whether, then, control tools stand beside calls that get a Step.
    """

    event_id: str
    agent_name: str
    branch: str | None
    calls: tuple[PausedCall, ...]
    tasks: tuple[str, ...] = ()
    node_path: str = ""
    inline: tuple[str, ...] = ()
    tasks_first: bool = False
    mixed: bool = False

    def to_json(self) -> Json:
        item: dict[str, Json] = {
            "event_id": self.event_id,
            "agent": self.agent_name,
            "branch": self.branch,
            "calls": [call.to_json() for call in self.calls],
        }
        if self.tasks:
            item["tasks"] = list(self.tasks)
        if self.node_path:
            item["path"] = self.node_path
        if self.inline:
            item["inline"] = list(self.inline)
        if self.tasks_first:
            item["tasks_first"] = True
        if self.mixed:
            item["mixed"] = True
        return item

    @staticmethod
    def from_json(item: Any) -> PausedEvent:
        return PausedEvent(
            event_id=item["event_id"],
            agent_name=item["agent"],
            branch=item.get("branch"),
            calls=tuple(PausedCall.from_json(call) for call in item["calls"]),
            tasks=tuple(item.get("tasks") or ()),
            node_path=item.get("path") or "",
            inline=tuple(item.get("inline") or ()),
            tasks_first=bool(item.get("tasks_first")),
            mixed=bool(item.get("mixed")),
        )


@dataclass(frozen=True)
class PausedInput:
    """A question to the user, which ADK itself waits for.

    Attributes:
        call_id: Id of ADK's call, which the answer names.
        author: The agent or node that asks.
        arguments: ADK's arguments: message, payload and schema of the answer.
        node_path: ADK's path of the node that asks, or empty.
    """

    call_id: str
    author: str
    arguments: dict[str, Json]
    node_path: str = ""

    def to_json(self) -> Json:
        return [self.call_id, self.author, self.arguments, self.node_path]

    @staticmethod
    def from_json(item: Any) -> PausedInput:
        call_id, author, arguments, *path = item  # an older release stored no path
        return PausedInput(call_id, author, arguments, *path)


@dataclass(frozen=True)
class HeldAnswer:
    """A later part of a model's answer, which comes in when the calls before it have their results.

    Attributes:
        agent_name: The agent that asked the model.
        branch: ADK's branch of the agent.
        item: The event, as ADK would have stored it.
    """

    agent_name: str
    branch: str | None
    item: Json

    def to_json(self) -> Json:
        return [self.agent_name, self.branch, self.item]

    @staticmethod
    def from_json(item: Any) -> HeldAnswer:
        agent_name, branch, event = item
        return HeldAnswer(agent_name, branch, event)


@dataclass(frozen=True)
class Fault:
    """Useless answers of an agent's model, the newest of a row.

    Attributes:
        count: How many there were in a row.
        text: What was wrong with the newest.
    """

    agent_name: str
    branch: str | None
    count: int
    text: str

    def to_json(self) -> Json:
        return [self.agent_name, self.branch, self.count, self.text]

    @staticmethod
    def from_json(item: Any) -> Fault:
        agent_name, branch, count, text = item
        return Fault(agent_name, branch, count, text)


@dataclass(frozen=True)
class StartedAgent:
    """An agent in the middle of its run.

    Attributes:
        name: The agent.
        branch: The branch it runs in.
        output: What it has said so far, of which ADK makes the value of ``output_key``.
        began_behind: Id of the event behind which an agent with sub-agents began; empty for others.
    """

    name: str
    branch: str | None
    output: str = ""
    began_behind: str = ""

    def to_json(self) -> Json:
        item = [self.name, self.branch, self.output]
        return [*item, self.began_behind] if self.began_behind else item

    @staticmethod
    def from_json(item: Any) -> StartedAgent:
        name, branch, output, *began_behind = item  # an older release stored no event
        return StartedAgent(name, branch, output, *began_behind)


@dataclass(frozen=True)
class NodeRetry:
    """A node that is being tried again.

    Attributes:
        failed: How many of its attempts have failed.
        children: ADK's counts of the runs of each child when the attempt began, by parent path.
    """

    failed: int
    children: dict[str, dict[str, int]]

    def to_json(self) -> Json:
        return [self.failed, self.children]

    @staticmethod
    def from_json(item: Any) -> NodeRetry:
        failed, children = item
        return NodeRetry(failed, children)


@dataclass(frozen=True)
class RunState:
    """The run state of an outcome.

    Attributes:
        invocation_id: ADK's id of the open invocation.
        events: Stored events of the turn so far, the user's first.
        paused: Responses whose calls wait, in the order of the outcome's calls.
        started: Agents that have started and not ended.
        temp_state: ``temp:`` keys, which ADK keeps out of stored events but not out of the
            invocation.
        node_inputs: Inputs of ``single_turn`` nodes, which ADK does not store, by node path.
        image_uris: URIs of images of tools in the open turn.
        inputs: Questions that wait for the user, behind the calls of the outcome.
        long_running: Ids of long-running calls by event; put back when the turn is over.
        is_begun: False while the turn has done no more than ADK's summary of older turns.
        source_tools: Source, description and schema of each tool of a source that the turn has
            called, so that its calls can be replayed when it is no longer listed.
        held: Later parts of model answers whose first calls wait, oldest first.
        faults: Useless answers that are asked for again.
        node_retries: Nodes that are being tried again, by path.
        handed_on: What finished nodes that claimed the output of a child handed on, by path.
        begun: Nodes in the middle of their run, as :class:`BegunNodes` has them.
        begun_agents: The agents among them.
        tree_shape: :attr:`AgentTree.shape` when the turn began; empty if an older release did it.
    """

    invocation_id: str
    events: tuple[Json, ...]
    paused: tuple[PausedEvent, ...] = ()
    started: tuple[StartedAgent, ...] = ()
    temp_state: dict[str, Json] = field(default_factory=dict)
    node_inputs: dict[str, Json] = field(default_factory=dict)
    image_uris: tuple[str, ...] = ()
    inputs: tuple[PausedInput, ...] = ()
    long_running: dict[str, list[str]] = field(default_factory=dict)
    is_begun: bool = True
    source_tools: dict[str, Json] = field(default_factory=dict)
    held: tuple[HeldAnswer, ...] = ()
    faults: tuple[Fault, ...] = ()
    node_retries: dict[str, NodeRetry] = field(default_factory=dict)
    handed_on: dict[str, Json] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    begun_agents: tuple[str, ...] = ()
    tree_shape: str = ""

    def to_json(self) -> Json:
        """The stored form."""
        return {
            "v": _VERSION,
            "invocation_id": self.invocation_id,
            "events": list(self.events),
            "paused": [event.to_json() for event in self.paused],
            "started": [agent.to_json() for agent in self.started],
            "temp_state": self.temp_state,
            "node_inputs": self.node_inputs,
            "image_uris": list(self.image_uris),
            "inputs": [item.to_json() for item in self.inputs],
            "long_running": self.long_running,
            "is_begun": self.is_begun,
            "source_tools": self.source_tools,
            "held": [answer.to_json() for answer in self.held],
            "faults": [fault.to_json() for fault in self.faults],
            "node_retries": {path: item.to_json() for path, item in self.node_retries.items()},
            "handed_on": self.handed_on,
            "begun": self.begun,
            "begun_agents": list(self.begun_agents),
            "tree_shape": self.tree_shape,
        }

    @staticmethod
    def from_json(item: Json) -> RunState:
        """The state behind a stored form.

        Raises:
            AgentTurnError: It was written by a release that this one cannot read.
        """
        try:
            if item["v"] != _VERSION:
                raise AgentTurnError(
                    f"the run state of the turn has version {item['v']!r}, this release reads "
                    f"{_VERSION}"
                )
            return RunState(
                invocation_id=item["invocation_id"],
                events=tuple(item["events"]),
                paused=tuple(PausedEvent.from_json(event) for event in item["paused"]),
                started=tuple(StartedAgent.from_json(agent) for agent in item["started"]),
                temp_state=item["temp_state"],
                node_inputs=item.get("node_inputs") or {},
                image_uris=tuple(item.get("image_uris") or ()),
                inputs=tuple(PausedInput.from_json(i) for i in item.get("inputs") or ()),
                long_running=item.get("long_running") or {},
                is_begun=bool(item.get("is_begun", True)),
                source_tools=item.get("source_tools") or {},
                held=tuple(HeldAnswer.from_json(answer) for answer in item.get("held") or ()),
                faults=tuple(Fault.from_json(fault) for fault in item.get("faults") or ()),
                node_retries={
                    path: NodeRetry.from_json(retry)
                    for path, retry in (item.get("node_retries") or {}).items()
                },
                handed_on=item.get("handed_on") or {},
                begun=item.get("begun") or {},
                begun_agents=tuple(item.get("begun_agents") or ()),
                tree_shape=item.get("tree_shape") or "",
            )
        except (KeyError, TypeError, ValueError) as error:
            raise AgentTurnError(f"the run state of the turn is damaged: {error!r}") from error
