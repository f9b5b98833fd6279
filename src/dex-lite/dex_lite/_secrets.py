"""Values of hard-delete Attributes, on their way to the table that alone keeps them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dex_lite._machine.facts import AnyFact, RunStarted, SecretsWritten
from dex_lite._machine.model import RunState
from dex_lite._records import PutSecret


def secret_writes(state: RunState, facts: Sequence[AnyFact]) -> list[PutSecret]:
    """What the commit of these facts writes to the table. The state is the one after them."""
    touched: dict[str, None] = {}
    for fact in facts:
        if isinstance(fact, SecretsWritten):
            touched |= dict.fromkeys(key for key, _ in fact.writes)
        elif isinstance(fact, RunStarted):
            touched |= dict.fromkeys(key for key, _ in fact.secrets)
    return [
        PutSecret(state.run_id, key, state.attributes[key] if key in state.secrets else None)
        for key in touched
    ]


def put_back(state: RunState, values: Mapping[str, bytes]) -> None:
    """Complete a state that was read with its values of the table.

    A run that another one followed has none any more: these Attributes are not there then.
    """
    for key in list(state.secrets):
        if key in values:
            state.attributes[key] = values[key]
        else:
            del state.attributes[key], state.secrets[key]
