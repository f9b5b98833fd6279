"""The sources of a runner: checked when it is built, listed before every model call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dex_agents._arguments import check_name, check_texts
from dex_agents._errors import ToolSourceError
from dex_agents._session.encoding import EncodingError, encode
from dex_agents._session.failures import MAX_DETAIL_BYTES, RUNNER_FAILURES, message_of
from dex_agents._session.options import check_duration
from dex_agents._tool_sources.contract import SourceTool, ToolSource

_LOGGER = logging.getLogger("dex_agents")
DEFAULT_LISTING_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True)
class ListedTool:
    """A tool and the source that offers it."""

    source: ToolSource
    tool: SourceTool


class ToolSourceCatalog:
    """All sources of one runner.

    Args:
        sources: In the order in which their tools are offered.
        listing_timeout: Longest time one source may take to list; whole seconds.
        taken_names: Names of the agent's own tools, agents and control tools, with what each is.

    Raises:
        TypeError: Something is no source, or no duration, or declares what is no list of names.
        ValueError: Two sources have one name, or a declared tool has a name that is taken or none.
    """

    def __init__(
        self,
        sources: Sequence[ToolSource],
        listing_timeout: timedelta = DEFAULT_LISTING_TIMEOUT,
        taken_names: Mapping[str, str] | None = None,
    ) -> None:
        check_duration("tool_source_listing_timeout", listing_timeout)
        self._timeout_s = listing_timeout.total_seconds()
        self._taken = dict(taken_names or {})
        self._abandoned: set[asyncio.Task[Any]] = set()
        self.by_name: dict[str, ToolSource] = {}
        for source in sources:
            self._add(source)
        owners: dict[str, str] = {}
        for source in sources:
            for name in source.declared_tool_names:
                if why := self._clash(name, source, owners):
                    raise ValueError(why)

    def _add(self, source: ToolSource) -> None:
        if not isinstance(source, ToolSource):
            raise TypeError(
                f"tool_sources must hold tool sources, got {type(source).__name__}; see "
                f"dex_agents.ToolSource for what one has"
            )
        name = source.source_name
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"the source_name of a {type(source).__name__} is blank: {name!r}")
        if name in self.by_name:
            raise ValueError(
                f"tool_sources has two sources named {name!r}; a stored call finds its source by "
                f"name, so give each one of its own"
            )
        declared = f"declared_tool_names of the source {name!r}"
        check_texts(declared, source.declared_tool_names)
        for tool_name in source.declared_tool_names:
            check_name(f"each of {declared}", tool_name)
        self.by_name[name] = source

    def _clash(self, name: str, source: ToolSource, owners: dict[str, str]) -> str | None:
        """Why a source cannot offer a tool of this name; else it is the owner from now on."""
        taken = self._taken.get(name)
        if taken is None and name in owners:
            taken = f"a tool of the source {owners[name]!r}"
        if taken is not None:
            return (
                f"the tool {name!r} of the source {source.source_name!r} has the name of {taken}; "
                f"rename one of them"
            )
        owners[name] = source.source_name
        return None

    @property
    def declared_names(self) -> Collection[str] | None:
        """Names of all tools, ``None`` if a source tells its tools only when it is listed."""
        declared = [source.declared_tool_names for source in self.by_name.values()]
        if not all(declared):
            return None
        return frozenset(name for names in declared for name in names)

    async def list_all(self) -> dict[str, ListedTool]:
        """What the sources offer now, by tool name. A source that fails or is slow offers nothing.

        Raises:
            ToolSourceError: Two tools have one name, or one has the name of something of the agent.
        """
        sources = list(self.by_name.values())
        listings = await asyncio.gather(*(self._list(source) for source in sources))
        found: dict[str, ListedTool] = {}
        owners: dict[str, str] = {}
        for source, tools in zip(sources, listings, strict=True):
            for tool in tools:
                if why := self._clash(tool.name, source, owners):
                    raise ToolSourceError(why)
                found[tool.name] = ListedTool(source, tool)
        return found

    def cached(self, source_name: str, tool_name: str) -> SourceTool | None:
        """A tool as this process has listed it last; ``None`` if its source cannot tell."""
        source = self.by_name.get(source_name)
        if source is None:
            return None
        try:
            tools = source.cached_tools()
            found = next((tool for tool in tools if tool.name == tool_name), None)
        except RUNNER_FAILURES as error:
            _LOGGER.warning(
                "the tool source %s could not say which tools it has listed (%s: %s)",
                source_name,
                type(error).__name__,
                message_of(error, MAX_DETAIL_BYTES),
            )
            return None
        return found if isinstance(found, SourceTool) else None

    async def _list(self, source: ToolSource) -> Sequence[SourceTool]:
        name = source.source_name
        # A task of its own: a client library that swallows a cancellation must not hold us up.
        task = asyncio.ensure_future(_list_checked(source))
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        if not done:
            self._abandon(task)
            _LOGGER.warning(
                "the tool source %s did not list its tools within %g s; the model call goes on "
                "without them",
                name,
                self._timeout_s,
            )
            return ()
        try:
            return task.result()
        except (*RUNNER_FAILURES, asyncio.CancelledError) as error:
            _LOGGER.warning(
                "the tool source %s could not list its tools (%s: %s); the model call goes on "
                "without them",
                name,
                type(error).__name__,
                message_of(error, MAX_DETAIL_BYTES),
            )
            return ()

    def _abandon(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        if isinstance(task, asyncio.Task):
            self._abandoned.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()


async def _list_checked(source: ToolSource) -> Sequence[SourceTool]:
    """A listing in which everything can be offered; whatever is wrong with it is raised in here."""
    tools = await source.list_tools()
    for tool in tools:
        if not isinstance(tool, SourceTool):
            raise TypeError(f"it listed a {type(tool).__name__} instead of a SourceTool")
        if not isinstance(tool.name, str) or not tool.name.strip():
            raise ValueError("it listed a tool without a name")
        if not isinstance(tool.description, str):
            raise TypeError(f"the description of {tool.name!r} is no str")
        if not isinstance(tool.input_schema, Mapping):
            raise TypeError(f"the input_schema of {tool.name!r} is no mapping")
        try:
            encode(dict(tool.input_schema))
        except EncodingError as error:
            raise ValueError(f"the input_schema of {tool.name!r} is {error}") from error
    return tools
