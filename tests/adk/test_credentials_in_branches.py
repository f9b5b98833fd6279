"""Credentials that branches wait for beside everything else that may wait, in any order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.parallel_agent import ParallelAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.adk.workflow import BaseNode, JoinNode, Workflow

from dex_agents import AgentSessionClient, PendingInterrupt, ToolEffect, ToolPolicy
from support.adk_oracle import call, run_plain, state_of, text
from support.credential_agent import (
    AUTHORIZATION_SECRET,
    Vault,
    api_key_config,
    authorization_config,
    balance_tool,
)
from support.oauth_provider import API_KEY, OAuthProvider
from support.stored import holders_of
from support.tree_cases import around, llm
from support.tree_oracle import Scripts, Seen, TreeWorld, check_same
from support.waiting import pending, session
from support.waiting_trees import ANSWER, QUESTION_NODE, question

pytestmark = pytest.mark.filterwarnings("ignore")
TURN_S = 60.0
WAITS = 5
SCRIPTS: Scripts = {
    "key": [[call("balance", "of-key", account="a")], text("key done")],
    "oauth": [[call("balance", "of-oauth", account="b")], text("oauth done")],
    "ask": [[call("buy", "of-ask", x="1")], text("ask done")],
    "job": [[call("render", "of-job", x="2")], text("job done")],
    "more": [[call("render", "of-more", x="3")], text("more done")],
    "last": [text("all done")],
}


class PlainWorld(TreeWorld):
    """Of plain ADK, where nothing waits."""

    is_plain = True


def make_agents(world: TreeWorld, url: str) -> dict[str, Any]:
    """An agent for each kind of wait; in plain ADK their tools have the answers."""
    is_plain = isinstance(world, PlainWorld)

    def balance(account: str) -> Any:
        """The balance of an account."""
        return {"balance": 42}

    def buy(x: str) -> Any:
        """Buy."""
        world.ran("buy", x=x)
        return {"bought": x}

    def render(x: str) -> Any:
        """Render."""
        world.ran("render", x=x)
        return {"url": x} if is_plain else None

    job = LongRunningFunctionTool(render)
    job.is_long_running = not is_plain
    return {
        "key": llm(world, "key", balance if is_plain else balance_tool(api_key_config(), url)),
        "oauth": llm(
            world, "oauth", balance if is_plain else balance_tool(authorization_config(url), url)
        ),
        "ask": llm(world, "ask", buy),
        "job": llm(world, "job", job),
        "more": llm(world, "more", job),
        "last": llm(world, "last"),
    }


def parallel(world: TreeWorld, url: str) -> BaseNode:
    agents = make_agents(world, url)
    first, second, last = agents.pop("key"), agents.pop("oauth"), agents.pop("last")
    inner = around(world, ParallelAgent, "inner", second, agents["job"])
    outer = around(world, ParallelAgent, "outer", first, agents["ask"], agents["more"], inner)
    root: BaseNode = around(world, SequentialAgent, "root", outer, last)
    return root


def workflow(world: TreeWorld, url: str) -> BaseNode:
    agents = make_agents(world, url)
    last, _ = agents.pop("last"), agents.pop("more")
    lanes = (*agents.values(), question(world))
    return Workflow(name="root", edges=[("START", lanes, JoinNode(name="join"), last)])


async def give(
    sessions: AgentSessionClient, interrupt: PendingInterrupt, vault: Vault, provider: OAuthProvider
) -> list[str]:
    """Answer what waits; returns what must be found nowhere."""
    where = ("s", interrupt.interrupt_id)
    if interrupt.kind == "approval":
        await sessions.resolve_interrupt(*where, approved=True)
    elif interrupt.kind == "long_running":
        await sessions.answer_question(*where, {"url": str(interrupt.arguments["x"])})
    elif interrupt.kind == "input":
        await sessions.answer_question(*where, ANSWER)
    elif interrupt.payload["auth_scheme"]["type"] == "apiKey":
        vault.keep("my-key", API_KEY)
        await sessions.provide_credential(*where, "my-key")
        return [API_KEY]
    else:
        oauth2 = interrupt.payload["oauth2"]
        callback = provider.consent(oauth2["auth_uri"])
        vault.keep("my-secret", callback)
        await sessions.provide_credential(*where, "my-secret", state=oauth2["state"])
        return [callback, provider.codes[-1]]
    return []


def history(items: Sequence[Any]) -> list[Any]:
    """Without marks of long-running calls and the node that asks, which plain ADK has otherwise."""
    asks = f"/{QUESTION_NODE}@"
    return [
        {key: value for key, value in item.items() if key != "long_running_tool_ids"}
        for item in items
        if asks not in item.get("node_info", {}).get("path", "")
        and "adk_request_input" not in str(item.get("content"))
    ]


@pytest.mark.parametrize(
    ("build", "is_reversed"),
    [
        (parallel, False),
        pytest.param(parallel, True, marks=pytest.mark.long),
        pytest.param(workflow, False, marks=pytest.mark.long),
        (workflow, True),
    ],
)
async def test_credentials_beside_other_waits(
    build: Callable[[TreeWorld, str], BaseNode],
    is_reversed: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain_world, world = PlainWorld(SCRIPTS), TreeWorld(SCRIPTS)
    plain = await run_plain(lambda w: build(w, ""), plain_world, ["go"])
    caplog.set_level(logging.DEBUG)
    vault, folder = Vault(tmp_path / "vault"), tmp_path / "session"
    folder.mkdir()
    with OAuthProvider() as provider:
        async with session(
            build(world, provider.url),
            folder,
            tool_policies={"buy": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)},
            credential_resolver=vault.resolve,
            authorization_secret=AUTHORIZATION_SECRET,
        ) as sessions:
            waiting = await pending(sessions, WAITS)
            assert sorted(item.kind for item in waiting).count("credential") == 2
            asked = len(world.asked)
            secrets: list[str] = []
            order = waiting[::-1] if is_reversed else waiting
            for count, interrupt in enumerate(order, start=1):
                secrets += await give(sessions, interrupt, vault, provider)
                if count < WAITS:
                    rest = await pending(sessions, WAITS - count)
                    assert {item.interrupt_id for item in rest} == {
                        item.interrupt_id for item in order[count:]
                    }
                    assert len(world.asked) == asked, "a branch went on before all was answered"
            snapshot = await sessions.wait_for_turn("s", 1, timeout_s=TURN_S)
            assert snapshot.last_turn is not None
            assert snapshot.last_turn.error == ""
            page = await sessions.list_messages("s")
        exchange = next(item for item in provider.requests if item.path == "/token")
        assert (len(provider.tokens), provider.refused, provider.opened) == (1, [], 2)
    items = [message.framework_item for message in page.messages]
    check_same(
        Seen(world.asked, history(items), state_of(items), world.executed, world.callbacks),
        Seen(
            plain_world.asked,
            history(plain.events),
            plain.state,
            plain_world.executed,
            plain_world.callbacks,
        ),
        any_order=True,
    )
    # The references are stored, so the search finds what there is.
    assert "e.db" in holders_of("my-key", folder)
    assert "e.db" in holders_of("my-secret", folder)
    for secret in (*secrets, *provider.tokens, exchange.form["code_verifier"]):
        assert len(secret) > 8
        assert not holders_of(secret, folder)
        assert secret not in caplog.text
