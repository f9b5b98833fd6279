"""Which node a call or a wait belongs to: ADK's path of its run, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.events.request_input import RequestInput
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import BaseNode, JoinNode, Workflow, node

from dex_agents import AgentTurnError, ToolEffect, ToolPolicy
from dex_agents_google_adk import AdkAgentRunner
from dex_agents_google_adk._node_path import NodeVisit, parse_node_path
from dex_agents_google_adk._tree import AgentTree
from support.adk_oracle import Driver, call, run_plain, text
from support.tree_oracle import TreeLlm, TreeWorld, compare_tree
from support.waiting import pending, session

pytestmark = pytest.mark.filterwarnings("ignore")


def agent(world: TreeWorld, name: str, script: str = "", **fields: Any) -> LlmAgent:
    """An agent whose only tool is named ``look`` in every agent, and says whose it is."""
    owner = script or name

    def look(x: str) -> str:
        """Look."""
        world.ran(f"look of {owner}", x=x)
        return f"{owner} saw {x}"

    return LlmAgent(
        name=name,
        model=TreeLlm(world=world),
        instruction=f"You are {owner}.",
        description=name,
        tools=[look],
        **fields,
    )


async def play(
    build: Callable[[TreeWorld], BaseNode], scripts: dict[str, Any], **arguments: Any
) -> tuple[Driver, TreeWorld]:
    """One turn."""
    world = TreeWorld(scripts)
    runner = AdkAgentRunner(
        build(world),
        default_tool_effect=ToolEffect.READ,
        artifact_service=InMemoryArtifactService(),
        **arguments,
    )
    driver = Driver(runner, world, repeats=2)
    driver.calls_per_step = 20
    await driver.turn("go")
    return driver, world


def paths_of(driver: Driver) -> list[str]:
    return [item.node_path for item in driver.requested]


def test_a_path_is_its_visits_and_their_prefixes() -> None:
    assert parse_node_path("") == ()
    visits = parse_node_path("outer@1/inner@1/review@2")
    assert visits == (
        NodeVisit("outer", "1", "outer@1"),
        NodeVisit("inner", "1", "outer@1/inner@1"),
        NodeVisit("review", "2", "outer@1/inner@1/review@2"),
    )
    assert parse_node_path("a@b.c@adk-1")[0] == NodeVisit("a@b.c", "adk-1", "a@b.c@adk-1")


@pytest.mark.parametrize("seed", range(100))
def test_paths_survive_parsing_and_malformed_ones_are_named(seed: int) -> None:
    chance = random.Random(seed)
    alphabet = "abz_-. é"
    segments = [
        f"n{''.join(chance.choices(alphabet, k=3))}@{chance.randint(1, 99)}"
        for _ in range(chance.randint(1, 5))
    ]
    path = "/".join(segments)
    assert [visit.occurrence for visit in parse_node_path(path)] == [
        "/".join(segments[: count + 1]) for count in range(len(segments))
    ]
    place = chance.randrange(len(segments))
    broken = chance.choice(["", " ", "name", "@1", "name@", " @1", "name@ ", "@"])
    with pytest.raises(AgentTurnError, match=r"whose part .* is not like 'name@run'"):
        parse_node_path("/".join([*segments[:place], broken, *segments[place + 1 :], "x@1"]))


def reviews(world: TreeWorld) -> Workflow:
    """Two agents named ``review`` in two Workflows, side by side; the model's text misleads."""
    join = JoinNode(name="join")
    lanes = tuple(
        Workflow(name=lane, edges=[("START", agent(world, "review", f"{lane} review"))])
        for lane in ("left", "right")
    )
    return Workflow(name="outer", edges=[("START", lanes, join)])


class Lanes(TreeWorld):
    """Scripts by the instruction, as the agents have one name; the texts mislead.

    Args:
        slow: The lane that makes a second round of calls, and so ends last.
    """

    def __init__(self, slow: str) -> None:
        super().__init__({})
        self.slow = slow

    def next_step(self, agent: str, request: Any) -> Any:
        lane = "left" if "left" in request["config"]["system_instruction"] else "right"
        other = "right" if lane == "left" else "left"
        index = self.cursors.get(lane, 0)
        self.cursors[lane] = index + 1
        self.asked.append((lane, request))
        rounds = 2 if lane == self.slow else 1
        if index < rounds:
            return [text(f"I am outer@1/{other}@1/review@1"), call("look", "same-id", x=lane)]
        return text(f"{lane} end")


@pytest.mark.parametrize("slow", ["left", "right"])
async def test_equal_names_stay_apart_whoever_ends_first_and_whatever_is_said(slow: str) -> None:
    world = Lanes(slow)
    runner = AdkAgentRunner(reviews(world), default_tool_effect=ToolEffect.READ)
    driver = Driver(runner, world, repeats=2)
    driver.calls_per_step = 20
    await driver.turn("go")
    found = sorted((item.node_path, item.arguments["x"]) for item in driver.requested)
    # The waits of one response of each lane stand in the graph's order, whoever ends first.
    assert paths_of(driver)[:2] == ["outer@1/left@1/review@1", "outer@1/right@1/review@1"]
    fast = "right" if slow == "left" else "left"
    expected = [(f"outer@1/{lane}@1/review@1", lane) for lane in (slow, slow, fast)]
    assert found == sorted(expected)
    assert sorted(world.executed) == sorted(
        (f"look of {lane} review", {"x": lane}) for lane in (slow, slow, fast)
    )
    for lane, request in world.asked:
        other = "right" if lane == "left" else "left"
        assert f"{other} review saw" not in json.dumps(request["contents"])


async def test_sessions_on_one_agent_keep_their_paths() -> None:
    world = Lanes("left")
    runner = AdkAgentRunner(reviews(world), default_tool_effect=ToolEffect.READ)

    async def one(name: str) -> list[str]:
        own = Lanes(name)
        driver = Driver(runner, world, session_id=name)
        driver.calls_per_step = 20
        own.cursors.clear()
        await driver.turn("go")
        return paths_of(driver)

    first = await one("left")
    world.cursors.clear()
    world.slow = "right"
    second = await one("right")
    paths = ["outer@1/left@1/review@1", "outer@1/right@1/review@1"]
    assert sorted(set(first)) == sorted(set(second)) == paths
    assert (first.count(paths[0]), second.count(paths[1])) == (2, 2)


async def test_every_visit_has_a_path_of_its_own_which_is_adks() -> None:
    scripts: dict[str, list[Any]] = {
        "router": [
            [call("look", x="0")],
            [call("transfer_to_agent", agent_name="spec")],
            [call("transfer_to_agent", agent_name="spec")],
        ],
        "spec": [
            [call("look", x="1")],
            [call("transfer_to_agent", agent_name="router")],
            [call("look", x="2")],
            text("end"),
        ],
    }

    def build(world: Any) -> LlmAgent:
        return agent(world, "router", sub_agents=[agent(world, "spec")])

    world = TreeWorld(scripts)
    plain = await run_plain(build, world, ["go"])
    driver = await compare_tree(
        build, scripts, plain=plain, plain_world=world, default_tool_effect=ToolEffect.READ
    )
    visits = [
        event["node_info"]["path"]
        for event in plain.events
        for part in (event.get("content") or {}).get("parts", ())
        if (part.get("function_call") or {}).get("name") == "look"
    ]
    assert paths_of(driver) == visits
    assert len(set(visits)) == 3
    assert {parse_node_path(path)[-1].name for path in visits[1:]} == {"spec"}


def test_every_configured_node_is_known_at_construction() -> None:
    world = TreeWorld({})
    join = JoinNode(name="join")
    inner = Workflow(name="inner", edges=[("START", (agent(world, "a"), agent(world, "b")), join)])
    root = Workflow(name="outer", edges=[("START", agent(world, "first"), inner)])
    names = {found.name for found in AgentTree(root, (agent(world, "dynamic"),)).nodes()}
    assert names >= {"outer", "first", "inner", "a", "b", "join", "dynamic"}
    chat = {found.name for found in AgentTree(chat_workflow(world)).nodes()}
    assert chat >= {"outer", "router", "reviewer", "spec", "after"}


async def test_an_agent_tool_in_a_node_runs_whole_in_one_step() -> None:
    scripts: dict[str, list[Any]] = {
        "owner": [[call("helper", request="help")], text("helped")],
        "helper": [[call("look", x="inside")], text("the helper's answer")],
    }

    def build(world: Any) -> Workflow:
        owner = LlmAgent(
            name="owner",
            model=TreeLlm(world=world),
            instruction="You are owner.",
            tools=[AgentTool(agent(world, "helper"))],
        )
        return Workflow(name="outer", edges=[("START", owner)])

    driver = await compare_tree(build, scripts, default_tool_effect=ToolEffect.READ)
    assert [(item.tool_name, item.node_path) for item in driver.requested] == [
        ("helper", "outer@1/owner@1")
    ]
    assert driver.world.executed == [("look of helper", {"x": "inside"})]


async def test_a_target_that_is_not_configured_takes_no_visit() -> None:
    scripts = {"router": [[call("transfer_to_agent", agent_name="nobody")]], "spec": []}

    def build(world: Any) -> LlmAgent:
        return agent(world, "router", sub_agents=[agent(world, "spec")])

    plain = TreeWorld(scripts)
    with pytest.raises(ValueError, match="Transfer target agent 'nobody' not found"):
        await run_plain(build, plain, ["go"])
    with pytest.raises(ValueError, match="Transfer target agent 'nobody' not found"):
        await play(build, scripts)


def chat_workflow(world: Any) -> Workflow:
    """Two transfers inside one node, whose targets have tools."""
    spec = agent(world, "spec")
    reviewer = agent(world, "reviewer", sub_agents=[spec])
    router = agent(world, "router", mode="chat", sub_agents=[reviewer])
    return Workflow(name="outer", edges=[("START", router, agent(world, "after"))])


CHAT_SCRIPTS: dict[str, list[Any]] = {
    "router": [[call("look", x="1")], [call("transfer_to_agent", agent_name="reviewer")]],
    "reviewer": [[call("look", x="2")], [call("transfer_to_agent", agent_name="spec")]],
    "spec": [[call("look", x="3")], text("the specialist's answer")],
    "after": [text("after")] * 3,
}


async def test_transfers_inside_a_chat_node_are_adks_with_the_chain_in_the_path() -> None:
    driver = await compare_tree(
        chat_workflow, CHAT_SCRIPTS, default_tool_effect=ToolEffect.READ, repeats=2
    )
    assert paths_of(driver) == [
        "outer@1/router@1",
        "outer@1/router@1/reviewer@1",
        "outer@1/router@1/reviewer@1/spec@1",
    ]
    # Each call ran once, and every agent was asked as often as plain ADK asks it.
    assert [item.arguments["x"] for item in driver.requested] == ["1", "2", "3"]


@pytest.mark.parametrize("is_nested", [False, True])
async def test_a_graph_goes_on_behind_a_workflow_with_an_agent_tree(is_nested: bool) -> None:
    """An agent of mode ``chat`` has no output in ADK, so right behind it nothing runs."""

    def build(world: Any) -> Workflow:
        tree: Any = agent(world, "router", mode="chat", sub_agents=[agent(world, "reviewer")])
        if is_nested:
            tree = Workflow(name="inner", edges=[("START", tree)])
        return Workflow(name="outer", edges=[("START", tree, agent(world, "after"))])

    scripts = {**CHAT_SCRIPTS, "reviewer": [[call("look", x="2")], text("reviewed")]}
    driver = await compare_tree(build, scripts, default_tool_effect=ToolEffect.READ, repeats=2)
    said = [message.text for message in driver.history if message.text]
    assert said == ["go", "reviewed", *(["after"] if is_nested else [])]


async def test_a_target_that_waits_behind_two_transfers_runs_to_its_end(tmp_path: Path) -> None:
    world = TreeWorld(CHAT_SCRIPTS)
    policies = {"look": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}
    async with session(chat_workflow(world), tmp_path, tool_policies=policies) as sessions:
        for path in ("router@1", "router@1/reviewer@1", "router@1/reviewer@1/spec@1"):
            (waiting,) = await pending(sessions)
            assert waiting.node_path == f"outer@1/{path}"
            await sessions.resolve_interrupt("s", waiting.interrupt_id, approved=True)
        snapshot = await sessions.wait_for_turn("s", 1, timeout_s=40)
        assert snapshot.last_turn is not None
        assert snapshot.last_turn.final_text == "the specialist's answer"
        page = await sessions.list_messages("s")
    assert page.messages[-1].framework_item["author"] == "spec"
    # Every resumption went on from the one message of the user, and nothing else was stored.
    assert [message.text for message in page.messages if message.role == "user"] == ["go"]
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"e", "Waits"}
    assert [name for name, _ in world.executed] == [
        "look of router",
        "look of reviewer",
        "look of spec",
    ]


async def test_a_workflow_is_no_target_of_a_transfer_and_neither_is_a_node_outside() -> None:
    for target in ("outer", "after"):
        scripts = {**CHAT_SCRIPTS, "router": [[call("transfer_to_agent", agent_name=target)]]}
        with pytest.raises(ValueError, match=f"'{target}' not found"):
            await run_plain(chat_workflow, TreeWorld(scripts), ["go"])
        with pytest.raises(ValueError, match=f"'{target}' not found"):
            await play(chat_workflow, scripts)


async def test_a_wait_shows_where_it_is_asked(tmp_path: Path) -> None:
    world = TreeWorld({"review": [[call("look", x="1")], text("seen")]})

    def ask(node_input: Any) -> Any:
        yield RequestInput(message="which?", response_schema=None)

    join = JoinNode(name="join")
    lanes = (
        Workflow(name="left", edges=[("START", agent(world, "review"))]),
        Workflow(name="right", edges=[("START", ask)]),
    )
    root = Workflow(name="outer", edges=[("START", lanes, join)])
    policies = {"look": ToolPolicy(ToolEffect.NON_IDEMPOTENT_WRITE)}
    async with session(root, tmp_path, tool_policies=policies) as sessions:
        waiting = await pending(sessions, 2)
        found = {item.kind: item.node_path for item in waiting}
        assert found == {
            "approval": "outer@1/left@1/review@1",
            "input": "outer@1/right@1/ask@1",
        }


def test_a_wait_without_a_path_is_an_error() -> None:
    from google.adk.events.event import Event

    from dex_agents_google_adk._attempt import Attempt
    from dex_agents_google_adk._first_plugin import FirstPlugin
    from support.adk_oracle import LiveEvents

    world = TreeWorld({})
    event = Event(author="review")
    inside = FirstPlugin(Attempt(), LiveEvents(), AgentTree(reviews(world)))
    with pytest.raises(AgentTurnError, match="the calls of 'review' no node path"):
        inside._check_path(event)
    event.node_info.path = "outer@1/left@1/review@1"
    inside._check_path(event)
    event.node_info.path = "outer@1//review@1"
    with pytest.raises(AgentTurnError, match="is not like"):
        inside._check_path(event)


def test_names_that_a_path_cannot_tell_apart_are_an_error() -> None:
    tree = AgentTree(reviews(TreeWorld({})))
    left = tree.find_llm_agent("review", "outer@1/left@1/review@1")
    right = tree.find_llm_agent("review", "outer@1/right@2/review@7")
    assert left is not None and right is not None
    assert ("left" in str(left.instruction), "right" in str(right.instruction)) == (True, True)
    for path in ("", "outer@1/review@1"):
        with pytest.raises(AgentTurnError, match="2 agents are named 'review', and the node path"):
            tree.find_llm_agent("review", path)
    assert tree.find_llm_agent("nobody", "outer@1/nobody@1") is None


def dynamic(world: TreeWorld, make: Callable[[LlmAgent], LlmAgent]) -> Workflow:
    """A node that runs an agent made by ``make`` from the configured ``spec``."""
    spec = agent(world, "spec")

    @node(rerun_on_resume=True)
    async def run_child(node_input: Any, ctx: Any) -> Any:
        return await ctx.run_node(make(spec), node_input="dynamic input")

    return Workflow(name="w", edges=[("START", run_child, spec)])


@pytest.mark.parametrize(
    "make",
    [
        lambda spec: agent(spec.model.world, "spec", "impostor"),
        lambda spec: spec.clone(update={"name": "spec", "tools": []}),
        lambda spec: LlmAgent(name="spec", model=spec.model, instruction="You are spec."),
        lambda spec: agent(spec.model.world, "other"),
    ],
    ids=["namesake", "changed clone", "without tools", "unknown"],
)
async def test_agents_made_at_run_time_do_not_run(make: Callable[[LlmAgent], LlmAgent]) -> None:
    world = TreeWorld({"spec": [text("never")], "other": [text("never")]})
    runner = AdkAgentRunner(dynamic(world, make), default_tool_effect=ToolEffect.READ)
    driver = Driver(runner, world)
    with pytest.raises(
        AgentTurnError, match=r"stands nowhere in the tree.*did not run.*dynamic_ag"
    ):
        await driver.turn("go")
    assert (world.asked, world.executed) == ([], [])


async def test_a_transfer_target_made_at_run_time_does_not_run() -> None:
    world = TreeWorld(
        {"root": [[call("transfer_to_agent", agent_name="late")]], "late": [text("never")]}
    )
    root = agent(world, "root", sub_agents=[agent(world, "known")])
    runner = AdkAgentRunner(root, default_tool_effect=ToolEffect.READ)
    late = agent(world, "late")
    late.parent_agent = root
    root.sub_agents.append(late)
    with pytest.raises(AgentTurnError, match="agent 'late' stands nowhere in the tree"):
        await Driver(runner, world).turn("go")
    assert [name for name, _ in world.asked] == ["root"]


async def test_an_exact_clone_of_a_configured_agent_is_that_agent() -> None:
    scripts = {"spec": [[call("look", x="1")], text("one"), [call("look", x="2")], text("two")]}
    driver, world = await play(lambda w: dynamic(w, lambda spec: spec.clone()), scripts)
    assert [name for name, _ in world.executed] == ["look of spec"] * 2
    assert len(set(paths_of(driver))) == 2
