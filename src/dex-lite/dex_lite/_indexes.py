"""Attribute indexes of an engine: which there are, the rows that a commit writes, and filling new ones.

The rows are derived from the facts and the table of index types, and join the commit of the facts they follow from. A
new index is filled with what was there before it: open runs at once, closed ones in the background; searches for it
wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from dex_lite._journal import Journal
from dex_lite._machine.facts import AnyFact, AttributesWritten, RunStarted
from dex_lite._machine.model import RunState
from dex_lite._records import (
    DropIndexed,
    IndexesFilled,
    PutIndexed,
    PutIndexTypes,
    Write,
)
from dex_lite._runs import read_state
from dex_lite._search._fields import check_type
from dex_lite._search._terms import all_indexed, index_of, indexed

_LOGGER = logging.getLogger("dex_lite")
_RUNS_A_READ = 100


class Indexes:
    """The Attribute indexes of one data file."""

    def __init__(self, journal: Journal, open_states: Callable[[], Iterable[RunState]]) -> None:
        self._journal = journal
        self._open_states = open_states
        self._types = journal.index_types()
        self._is_filled = journal.are_indexes_filled() or not self._types
        self._filling: asyncio.Task[None] | None = None

    @property
    def types(self) -> Mapping[str, int]:
        """Type of each index by its name."""
        return self._types

    def start(self) -> None:
        """Go on with what an earlier engine left unfilled."""
        if not self._is_filled:
            self._fill()

    def close(self) -> None:
        """Fill no more; the next start goes on."""
        if self._filling is not None:
            self._filling.cancel()

    def register(self, types: Mapping[str, int]) -> int | None:
        """Make these indexes; the number of the commit, or ``None`` if all were there.

        Raises:
            IndexTypeError: One of them cannot be; none is made.
        """
        for name, index_type in types.items():
            check_type(self._types, name, index_type)
        new = {name: kind for name, kind in types.items() if name not in self._types}
        if not new:
            return None
        self._types.update(new)
        self._journal.submit([PutIndexTypes(new)])
        return self._fill()

    def writes(self, state: RunState, facts: Sequence[AnyFact]) -> list[Write]:
        """What the commit of these facts writes to the indexes. The state is the one after them."""
        touched: dict[str, None] = {}
        new: dict[str, int] = {}
        for fact in facts:
            if isinstance(fact, AttributesWritten):
                touched |= dict.fromkeys(key for key, _ in fact.writes)
            elif isinstance(fact, RunStarted):
                touched |= dict.fromkeys(state.attributes)
            else:
                continue
            # A Worker that was there before the data file may write to an index that is not in it.
            new |= {use.name: use.type for use in fact.indexes if use.name not in self._types}
        if not touched or not (self._types or new):
            return []
        rows: list[Write] = []
        if new:
            self._types.update(new)
            self._is_filled = False
            rows.append(PutIndexTypes(new))
            # Not now: other runs may be in the middle of their own commit.
            asyncio.get_running_loop().call_soon(self._fill)
        for attribute in touched:
            if index_of(state, attribute, self._types) is None:
                continue
            found = indexed(state, attribute, self._types)
            if found is None:
                rows.append(DropIndexed(state.run_id, attribute))
            else:
                rows.append(
                    PutIndexed(state.run_id, attribute, found.name, found.value, found.terms)
                )
        return rows

    async def filled(self, limit_s: float) -> bool:
        """Wait until every index holds every run; false if that takes longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not self._is_filled and self._filling is not None:
                    # Another index may come meanwhile, and then it begins anew.
                    filling = self._filling
                    await asyncio.wait([filling])
                    if filling is self._filling:
                        break
        return self._is_filled

    def _rows_of(self, state: RunState) -> Iterable[Write]:
        for attribute, found in all_indexed(state, self._types):
            yield PutIndexed(state.run_id, attribute, found.name, found.value, found.terms)

    def _fill(self) -> int:
        self._is_filled = False
        open_rows = [row for state in self._open_states() for row in self._rows_of(state)]
        commit = self._journal.submit(open_rows)
        if self._filling is not None:
            self._filling.cancel()
        self._filling = asyncio.get_running_loop().create_task(self._fill_closed())
        return commit

    async def _fill_closed(self) -> None:
        try:
            after = 0
            while rows := await self._journal.closed_runs(after, _RUNS_A_READ):
                for _, row in rows:
                    state = await read_state(self._journal, row.run_id)
                    if state is not None and (writes := list(self._rows_of(state))):
                        self._journal.submit(writes)
                after = rows[-1][0]
        except Exception:
            _LOGGER.exception("an Attribute index could not be filled; the next start tries again")
            return
        self._is_filled = True
        self._journal.submit([IndexesFilled()])
