"""Operations of connectors as a tool source."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import jsonschema

from dex_agents import _failpoints
from dex_agents._arguments import check_instance, check_name
from dex_agents._connectors.call import ConnectorCall, connector_call_id, has_fence
from dex_agents._connectors.operation import (
    ConnectionReference,
    ConnectorOperation,
    ConnectorOutcome,
    ConnectorResult,
    OperationKind,
    RetrySafety,
)
from dex_agents._contract import DeferredToolExecution, Json, ToolExecutionResult
from dex_agents._effects import ToolEffect
from dex_agents._errors import (
    AgentError,
    ToolExecutionError,
    ToolNotStartedError,
    ToolOutcomeUnknownError,
)
from dex_agents._session.failures import RUNNER_FAILURES
from dex_agents._tool_sources.contract import (
    SOURCE_NAME_CHARACTERS,
    SourceTool,
    SourceToolCall,
    ToolCallStepOptions,
)


class ConnectorRetryError(AgentError):
    """An attempt that may be made again.

    Args:
        message: Why it did not complete.
        retry_after_s: Seconds the provider asks to wait.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class ConnectorTool:
    """An operation with a connection, under the name that the model calls.

    Made by :func:`connector_tool`.
    """

    name: str
    operation: ConnectorOperation
    connection: ConnectionReference

    @property
    def effect(self) -> ToolEffect:
        """What a call does, as the operation says."""
        if self.operation.kind is OperationKind.QUERY:
            return ToolEffect.READ
        if self.operation.retry is RetrySafety.SAFE:
            return ToolEffect.IDEMPOTENT_WRITE
        return ToolEffect.NON_IDEMPOTENT_WRITE

    @property
    def step_options(self) -> ToolCallStepOptions:
        """Time limit and attempts, as the operation says."""
        attempts = self.operation.maximum_attempts if self.effect.maximum_attempts > 1 else None
        return ToolCallStepOptions(self.operation.timeout, attempts)

    def check(self, arguments: Mapping[str, Json]) -> None:
        """Refuse arguments that do not fit.

        Raises:
            ToolExecutionError: Where and why.
        """
        error = jsonschema.exceptions.best_match(
            jsonschema.validators.validator_for(self.operation.input_schema)(
                self.operation.input_schema
            ).iter_errors(dict(arguments))
        )
        if error is not None:
            where = "/".join(map(str, error.absolute_path)) or "the arguments"
            raise ToolExecutionError(f"{self.name} was not called: {where}: {error.message}")


def connector_tool(
    operation: ConnectorOperation, connection: ConnectionReference, *, name: str | None = None
) -> ConnectorTool:
    """Offer one operation over one connection.

    Args:
        operation: A reviewed operation.
        connection: One of its connector's connections.
        name: What the model calls; the operation's id by default.

    Raises:
        TypeError: It is no operation, or no reference.
        ValueError: The operation is not exposed, or of another connector than the connection, or
            its schema is none.
    """
    if not isinstance(operation, ConnectorOperation):
        raise TypeError(f"operation must be a ConnectorOperation, got {type(operation).__name__}")
    if not isinstance(connection, ConnectionReference):
        raise TypeError(
            f"connection must be a ConnectionReference, got {type(connection).__name__}"
        )
    if name is not None:
        check_name("name", name)
    what = f"the operation {operation.operation_id!r} of connector {operation.connector_id!r}"
    if not operation.is_exposed:
        raise ValueError(f"{what} is not exposed to agents; its connector must have it reviewed")
    if connection.connector_id != operation.connector_id:
        raise ValueError(
            f"{what} cannot use the connection {connection.name!r} of connector "
            f"{connection.connector_id!r}"
        )
    try:
        jsonschema.validators.validator_for(operation.input_schema).check_schema(
            operation.input_schema
        )
    except jsonschema.SchemaError as error:
        raise ValueError(f"the input schema of {what} is none: {error.message}") from error
    tool = ConnectorTool(name or operation.operation_id, operation, connection)
    tool.step_options  # noqa: B018 - refuses wrong limits here and not in the first session
    return tool


class ConnectorToolSource:
    """Offers operations of connectors. Their manifests decide how each call is carried out.

    A query is a read. A mutation waits for approval and keeps the model's order; one with
    ``retry: safe`` may be repeated with the same Call ID, any other runs once.

    Args:
        tools: What :func:`connector_tool` made.
        source_name: Unique within a Flow; keep it stable.

    Raises:
        TypeError: Something is no ``ConnectorTool``.
        ValueError: Two tools have one name.
    """

    def __init__(self, tools: Sequence[ConnectorTool], *, source_name: str = "connectors") -> None:
        check_instance("tools", tools, Sequence, "list what connector_tool() makes")
        check_name("source_name", source_name, most=SOURCE_NAME_CHARACTERS)
        self._tools: dict[str, ConnectorTool] = {}
        for tool in tools:
            if not isinstance(tool, ConnectorTool):
                raise TypeError(
                    f"tools must hold what connector_tool() makes, got {type(tool).__name__}"
                )
            if tool.name in self._tools:
                raise ValueError(
                    f"two connector tools have the name {tool.name!r}; give one another name in "
                    f"connector_tool(..., name=...)"
                )
            self._tools[tool.name] = tool
        self._name = source_name

    @property
    def source_name(self) -> str:
        """See :class:`dex_agents.ToolSource`."""
        return self._name

    @property
    def declared_tool_names(self) -> Collection[str]:
        """See :class:`dex_agents.ToolSource`."""
        return tuple(self._tools)

    async def list_tools(self) -> Sequence[SourceTool]:
        """See :class:`dex_agents.ToolSource`."""
        return self.cached_tools()

    def cached_tools(self) -> Sequence[SourceTool]:
        """See :class:`dex_agents.ToolSource`."""
        return [
            SourceTool(tool.name, tool.operation.description, tool.operation.input_schema)
            for tool in self._tools.values()
        ]

    def build_tool_call(self, tool_name: str, arguments: Mapping[str, Json]) -> SourceToolCall:
        """See :class:`dex_agents.ToolSource`."""
        tool = self._tools[tool_name]
        tool.check(arguments)
        is_mutation = tool.operation.kind is OperationKind.MUTATION
        return SourceToolCall(
            tool.effect,
            requires_approval=is_mutation,
            is_ordered_write=is_mutation,
            hint=tool.operation.description if is_mutation else "",
        )

    def tool_call_step_options(self, tool_name: str) -> ToolCallStepOptions:
        """See :class:`dex_agents.ToolSource`."""
        return self._tools[tool_name].step_options

    async def execute_deferred_tool_call(self, call: DeferredToolExecution) -> ToolExecutionResult:
        """See :class:`dex_agents.ToolSource`."""
        tool = self._tools.get(call.tool_name)
        if tool is None:
            raise ToolNotStartedError(f"this Worker has no connector tool {call.tool_name!r}")
        if call.checkpoint is None:
            raise ToolNotStartedError(f"{call.tool_name} can only run in a Step, which has a fence")
        tool.check(call.arguments)
        operation = tool.operation
        call_id = connector_call_id(
            call.session_id,
            call.step_execution_id,
            operation.connector_id,
            operation.operation_id,
        )
        attempt = ConnectorCall(
            call_id=call_id,
            connection=tool.connection,
            arguments=dict(call.arguments),
            attempt=call.attempt,
            may_have_left=has_fence(call.checkpoint.last, call_id),
            _checkpoint=call.checkpoint,
        )
        runs_once = call.effect.maximum_attempts == 1
        try:
            result = await operation.execute(attempt)
        except RUNNER_FAILURES as error:
            if runs_once and not attempt.is_dispatched:
                raise ToolNotStartedError(
                    f"{call.tool_name} did not reach its provider: {type(error).__name__}: {error}"
                ) from error
            raise
        _failpoints.reach("connector.completed")
        return _to_result(call.tool_name, result, runs_once)


def _to_result(name: str, result: ConnectorResult, runs_once: bool) -> ToolExecutionResult:
    if result.outcome is ConnectorOutcome.COMPLETED:
        return ToolExecutionResult(result.value, images=result.images)
    message = result.message or f"{name} ended as {result.outcome}"
    if result.outcome is ConnectorOutcome.UNCERTAIN:
        raise ToolOutcomeUnknownError(message)
    if result.outcome is ConnectorOutcome.RETRY and not runs_once:
        raise ConnectorRetryError(message, result.retry_after_s)
    raise ToolExecutionError(message)
