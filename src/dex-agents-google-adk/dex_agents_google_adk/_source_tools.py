"""Tools of the core's tool sources, offered to ADK's agents inside our own runs only."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from google.adk.agents.llm_agent import ToolUnion
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from dex_agents._contract import DeferredToolExecution, Json, ToolExecutionResult
from dex_agents._effects import ToolPolicy
from dex_agents._errors import (
    AgentError,
    AgentTurnError,
    ToolNotStartedError,
    ToolOutcomeUnknownError,
    ToolSourceError,
)
from dex_agents._session.failures import describe
from dex_agents._tool_sources.catalog import ListedTool, ToolSourceCatalog
from dex_agents._tool_sources.contract import SourceTool, SourceToolCall, ToolCallStepOptions
from dex_agents_google_adk._attempt import Attempt, current_attempt
from dex_agents_google_adk._images import lost_images
from dex_agents_google_adk._json import to_json
from dex_agents_google_adk._open_response import DeferredCall
from dex_agents_google_adk._tree import AgentTree

_SOURCE_KEY = "source"


class OfferedTool(BaseTool):
    """A source's tool as ADK sees it. ADK never runs it; its calls get Steps.

    Args:
        source_name: The source that offers it.
        tool: Name, description and schema, given to the model as they are.
        is_withdrawn: Whether it only stands here so that ADK can replay a call of it.
    """

    def __init__(self, source_name: str, tool: SourceTool, *, is_withdrawn: bool = False) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self.source_name = source_name
        self.tool = tool
        self.is_withdrawn = is_withdrawn

    @property
    def refusal(self) -> dict[str, Json]:
        """What the model reads for a new call of a withdrawn tool."""
        return {"error": f"{self.name} did not run: its tool source does not offer this tool now."}

    def to_json(self) -> Json:
        """What the run state keeps, for processes that never listed the tool."""
        return [self.source_name, self.tool.description, to_json(self.tool.input_schema)]

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.tool.name,
            description=self.tool.description,
            parameters_json_schema=dict(self.tool.input_schema),
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        """Never called by us.

        Raises:
            AgentTurnError: Always.
        """
        raise AgentTurnError(
            f"ADK wants to run the tool {self.name!r} of the source {self.source_name!r} itself; "
            f"it did not run"
        )


class SourceToolset(BaseToolset):
    """What a runner adds to each agent; empty outside the ``RunModel`` attempts of this runner."""

    def __init__(self) -> None:
        super().__init__()
        # ADK keeps a listing for a whole invocation, which goes on over many RunModel Steps.
        self._use_invocation_cache = False

    @property
    def offered(self) -> list[BaseTool]:
        """What the attempt offers that the caller is part of."""
        attempt = current_attempt()
        offer = attempt.offer if attempt is not None else None
        if not isinstance(offer, Offer) or offer.toolset is not self:
            return []
        return list(offer.tools.values())

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        """See :attr:`offered`."""
        return self.offered


class _AgentTools(list[ToolUnion]):
    """An agent's tools, and behind them the toolsets of runners while they offer something.

    Outside our runs it is the list that the application made: ADK asks it whether there are tools,
    and how many, to decide how an ``output_schema`` is met and which built-in tools are wrapped.

    Args:
        tools: The application's list.
    """

    def __init__(self, tools: Iterable[ToolUnion]) -> None:
        super().__init__(tools)
        self.toolsets: list[SourceToolset] = []

    def _offering(self) -> list[SourceToolset]:
        return [toolset for toolset in self.toolsets if toolset.offered]

    def __iter__(self) -> Iterator[ToolUnion]:
        yield from super().__iter__()
        yield from self._offering()

    def __len__(self) -> int:
        return super().__len__() + len(self._offering())


@dataclass(frozen=True)
class Offer:
    """What one attempt offers to all its model calls."""

    toolset: SourceToolset
    tools: Mapping[str, OfferedTool]

    def check(self, request: LlmRequest) -> None:
        """Refuse a request in which something else has the name of a source's tool.

        Raises:
            ToolSourceError: The name.
        """
        config_tools: Iterable[Any] = request.config.tools or ()
        declared = [
            declaration.name
            for tool in config_tools
            for declaration in getattr(tool, "function_declarations", None) or ()
        ]
        for name, tool in self.tools.items():
            found = request.tools_dict.get(name)
            if found is None and name not in declared:
                continue  # of an agent that is not ours
            if found is not tool or declared.count(name) > 1:
                raise ToolSourceError(
                    f"the tool {name!r} of the source {tool.source_name!r} has the name of a tool "
                    f"that the agent, or a toolset of it, lists; rename one of them"
                )


@dataclass(frozen=True)
class SourceTools:
    """The sources of a runner.

    Attributes:
        catalog: All of them.
        policies: Policies by tool name, of which only the approval counts here.
        toolset: Stands in every agent of the tree.
    """

    catalog: ToolSourceCatalog
    policies: Mapping[str, ToolPolicy]
    toolset: SourceToolset = field(default_factory=SourceToolset)

    def add_to(self, tree: AgentTree) -> None:
        """Give each agent of the tree the toolset."""
        if not self.catalog.by_name:
            return
        for agent in tree.llm_agents():
            if not isinstance(agent.tools, _AgentTools):
                agent.tools = _AgentTools(agent.tools)
            agent.tools.toolsets.append(self.toolset)

    async def offer(self, called: Mapping[str, Json]) -> Offer:
        """List every source.

        Args:
            called: Tools that the turn has called, as :meth:`OfferedTool.to_json` wrote them.

        Raises:
            ToolSourceError: What they list cannot be offered together.
        """
        listed = await self.catalog.list_all() if self.catalog.by_name else {}
        tools = {name: _offered(item) for name, item in listed.items()}
        for name, (source_name, description, schema) in called.items():
            if name not in tools:
                cached = self.catalog.cached(source_name, name)
                known = cached or SourceTool(name, description, schema)
                tools[name] = OfferedTool(source_name, known, is_withdrawn=True)
        return Offer(self.toolset, tools)

    def put_off(self, tool: OfferedTool, arguments: Mapping[str, Json]) -> DeferredCall:
        """How the call goes on in a Step.

        Raises:
            ToolExecutionError: Its source refuses it.
            ToolSourceError: Its source cannot say how to run it.
        """
        call, options = self._ask(tool, arguments)
        policy = self.policies.get(tool.name)
        asks = policy.requires_approval if policy is not None else None
        return DeferredCall(
            tool_name=tool.name,
            native=False,
            effect=call.effect,
            requires_approval=call.needs_approval if asks is None else asks,
            step_fields={
                "timeout_s": _seconds(options.timeout),
                "maximum_attempts": options.maximum_attempts,
                "retry_interval_s": _seconds(options.retry_interval),
                "maximum_retry_interval_s": _seconds(options.maximum_retry_interval),
                "is_ordered_write": call.is_ordered_write,
                "hint": call.hint,
            },
            framework_data={_SOURCE_KEY: [tool.source_name, call.data]},
        )

    def _ask(
        self, tool: OfferedTool, arguments: Mapping[str, Json]
    ) -> tuple[SourceToolCall, ToolCallStepOptions]:
        source = self.catalog.by_name[tool.source_name]
        try:
            call = source.build_tool_call(tool.name, arguments)
            options = source.tool_call_step_options(tool.name)
        except AgentError:
            raise
        except Exception as error:
            raise _undecided(tool, describe(error)) from error
        if not isinstance(call, SourceToolCall):
            raise _undecided(tool, f"build_tool_call gave a {type(call).__name__}")
        if not isinstance(options, ToolCallStepOptions):
            raise _undecided(tool, f"tool_call_step_options gave a {type(options).__name__}")
        return call, options

    @staticmethod
    def owns(call: DeferredToolExecution) -> bool:
        """Whether a source made the call."""
        return _SOURCE_KEY in (call.framework_data or {})

    async def execute(
        self, call: DeferredToolExecution, *, has_media_store: bool
    ) -> ToolExecutionResult:
        """Run a source's call.

        Raises:
            ToolNotStartedError: This process has no such source.
            Exception: See :meth:`dex_agents.ToolSource.execute_deferred_tool_call`.
        """
        source_name, data = call.framework_data[_SOURCE_KEY]
        source = self.catalog.by_name.get(source_name)
        if source is None:
            raise ToolNotStartedError(
                f"this Worker has no tool source named {source_name!r}, which offered "
                f"{call.tool_name!r}"
            )
        result = await source.execute_deferred_tool_call(replace(call, framework_data=data))
        if not isinstance(result, ToolExecutionResult):
            return result  # the session stores what it can of it
        if result.interrupt is not None:
            raise ToolOutcomeUnknownError(
                f"{call.tool_name} started something whose end a session does not wait for"
            )
        result = replace(result, framework_data={"ended_at": time.time()})
        if has_media_store or not result.images:
            return result
        # Only the session's store can show them to its model. What a source gives is not checked.
        count = len(result.images) if isinstance(result.images, Sequence) else 1
        told = result.not_stored if isinstance(result.not_stored, Sequence) else ()
        return replace(result, images=(), not_stored=[*told, *lost_images(count)])


def _offered(listed: ListedTool) -> OfferedTool:
    return OfferedTool(listed.source.source_name, listed.tool)


def _undecided(tool: OfferedTool, why: str) -> ToolSourceError:
    return ToolSourceError(
        f"the tool source {tool.source_name!r} cannot say how to run {tool.name!r}: {why}"
    )


def _seconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds())


def note_called(attempt: Attempt, names: Iterable[str], tools: Mapping[str, BaseTool]) -> None:
    """Remember which sources' tools the turn has called."""
    for name in names:
        tool = tools.get(name)
        if isinstance(tool, OfferedTool):
            attempt.called_source_tools[name] = tool.to_json()
