"""Arguments of public functions that are wrong are refused by name, before anything is done."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent

from core.scripted_runner import ScriptedRunner
from dex_agents import (
    AgentMessage,
    AgentSessionClient,
    AgentSessionFlow,
    CompactionPolicy,
    LocalDirectoryMediaStore,
    MessageRole,
    RequestedToolCall,
    TokenUsage,
    ToolCallStepOptions,
    ToolEffect,
    agent_worker_options,
    run_agent_workers,
)
from dex_agents.connectors import (
    ConnectionReference,
    ConnectorOutcome,
    ConnectorResult,
    ConnectorToolSource,
    connector_call_id,
)
from dex_agents.mcp import HttpServer, McpToolSource, StdioServer
from dex_agents.s3 import S3MediaStore
from dex_agents.session_graph import (
    flow_mermaid,
    history_mermaid,
    history_svg,
    read_session_history,
    render_session_flow_graph,
)
from dex_agents.testing import (
    Ledger,
    WorkerProcess,
    explore_crashes,
    failpoint_env,
    is_failpoint_reached,
    play_session,
    private_engine,
    read_step_history,
    read_step_shape,
    step_shape,
)
from dex_agents.ui_stream import (
    AiSdkEncoder,
    Position,
    TurnFold,
    UiStreamOptions,
    answer_approvals,
    open_ui_stream,
)
from dex_agents.ui_stream.ag_ui import answer_resume
from dex_agents_google_adk import (
    AdkAgentRunner,
    AdkSessionRunner,
    idempotency_key_for_tool_call,
)

ADDRESS = "server_address must be host:port without a scheme, such as 127.0.0.1:8801, got "
NOWHERE = "127.0.0.1:1"
NAME = "must be a printable text that is not blank, got "
HISTORY = "history must be a SessionHistory, got str; it comes from read_session_history()"
NO: Any = None
AGENT = LlmAgent(name="a", model="m")


def workers(**arguments: Any) -> Any:
    return run_agent_workers(**{"flows": "os:path", "server_address": NOWHERE} | arguments)


def options(**arguments: Any) -> Any:
    return agent_worker_options(**{"server_address": NOWHERE} | arguments)


async def entered(data_file: Any) -> Any:
    async with private_engine(data_file):
        pytest.fail("an engine was started")


def worker(**arguments: Any) -> Any:
    given = {"flow": "os:path", "server_address": NOWHERE, "data_dir": "/tmp"} | arguments
    return WorkerProcess.start(given.pop("flow"), **given)


def addresses(function: Callable[[Any], Any]) -> list[tuple[Callable[[], Any], type, str]]:
    """An address that is none, for every function that takes one."""
    texts = (
        "",
        " ",
        "no-port",
        ":1",
        "a:b",
        "a:0",
        "a:65536",
        "http://a:1",
        "a\0:1",
        "a:" + "1" * 5000,
    )
    return [
        *((lambda t=t: function(t), ValueError, f"{ADDRESS}{t[:80]!r}") for t in texts),
        *((lambda v=v: function(v), TypeError, f"{ADDRESS}{v!r}") for v in (None, 7, b"a:1")),
    ]


def names(
    function: Callable[[Any], Any], what: str, most: int | None = 4096
) -> list[tuple[Callable[[], Any], type, str]]:
    """A name that is none."""
    long = [] if most is None else [most + 1]
    texts = ("", " ", "a\0b", "a\ud800", "\n" * 5000)
    return [
        *((lambda t=t: function(t), ValueError, f"{what} {NAME}{t[:80]!r}") for t in texts),
        *(
            (
                lambda n=n: function("\u5de5" * n),
                ValueError,
                f"{what} must have at most {most} characters, got {n}",
            )
            for n in long
        ),
        (lambda: function(None), TypeError, f"{what} must be a str, got NoneType"),
        (lambda: function(b"x"), TypeError, f"{what} must be a str, got bytes"),
    ]


def file_names(
    function: Callable[[Any], Any], what: str, most: int
) -> list[tuple[Callable[[], Any], type, str]]:
    """A name of a file that is none."""
    hint = f"{what} must be a file name"
    texts = ("a/b", "/a", "a\\b", ".", "..")
    return [
        *names(function, what),
        *(
            (lambda t=t: function(t), ValueError, f"{hint} without a folder, got {t!r}")
            for t in texts
        ),
        *(
            (
                lambda n=n: function("\u00e9" * n + "x"),
                ValueError,
                f"{hint} of at most {most} bytes, got {2 * n + 1}",
            )
            for n in (most // 2 if most % 2 == 0 else most // 2 + 1, 1_000)
        ),
    ]


def function_paths(
    function: Callable[[Any], Any], what: str
) -> list[tuple[Callable[[], Any], type, str]]:
    """What names no function of a module."""
    hint = f"{what} must look like 'm"
    short = ("", " ", "a", "a.b", ":", "a:", ":b", "myshop/agent.py")
    long = ("a/b:c", ".a:b", "a..b:c", "a b:c", "a\\b:c", "a:b c", "a:b:c", "a:b.c", "C:/a.py:b")
    return [
        *names(function, what)[2:],
        *(
            (lambda t=t: function(t), ValueError, f"{hint}odule:function', got {t!r}")
            for t in short
        ),
        *(
            (
                lambda t=t: function(t),
                ValueError,
                f"{hint}yshop.agent:build_flow', a module by its dotted name and a function in it, "
                f"got {t!r}",
            )
            for t in long
        ),
    ]


def flow_types(
    function: Callable[[Any], Any],
) -> list[tuple[Callable[[], Any], type, str]]:
    """A Flow type that is none."""
    hint = "flow_type must have at most 200 characters and none of / $ and :, got "
    texts = ("a/b", "a$b", "a:b", "x" * 201, "\u5de5" * 10_000)
    return [
        *names(function, "flow_type", None),
        *((lambda t=t: function(t), ValueError, f"{hint}{len(t)}: {t[:80]!r}") for t in texts),
    ]


def paths(function: Callable[[Any], Any], what: str) -> list[tuple[Callable[[], Any], type, str]]:
    """A path that is none."""
    hint = f"{what} must be a path"
    return [
        *((lambda t=t: function(t), ValueError, f"{hint}, got {t!r}") for t in ("", " ", "a\0b")),
        (
            lambda: function("a\ud800"),
            ValueError,
            f"{hint} without lone surrogates, got 'a\\ud800'",
        ),
        (
            lambda: function("a/" + "\u00e9" * 128 + "/b"),
            ValueError,
            f"{hint} whose parts have at most 255 bytes each, got one of 256",
        ),
        (
            lambda: function("../" * 2000),
            ValueError,
            f"{hint} of at most 4096 characters, got 6000",
        ),
        (lambda: function(7), TypeError, f"{hint} (str or os.PathLike), got int"),
        (lambda: function(b"x"), TypeError, f"{hint} (str or os.PathLike), got bytes"),
    ]


def counts(
    function: Callable[[Any], Any], what: str, least: int
) -> list[tuple[Callable[[], Any], type, str]]:
    """A count that is none."""
    small = (least - 1, -(10**30))
    return [
        *(
            (lambda n=n: function(n), ValueError, f"{what} must be at least {least}, got {n}")
            for n in small
        ),
        *(
            (
                lambda n=n: function(n),
                ValueError,
                f"{what} must be at most 2147483647, got {shown}",
            )
            for n, shown in ((2**31, str(2**31)), (10**5000, "an int of 16610 bits"))
        ),
        *(
            (lambda v=v: function(v), TypeError, f"{what} must be an int, got {v!r}")
            for v in (True, 1.5, "2", None)
        ),
    ]


def tokens(function: Callable[[Any], Any]) -> list[tuple[Callable[[], Any], type, str]]:
    """A token that no engine can have; it is not shown."""
    hint = (
        "token must be printable ASCII characters without blanks, as the engine's token file has it"
    )
    return [
        *(
            (lambda t=t: function(t), ValueError, hint)
            for t in (" ", "a b", "a\nb", "a\0b", "\xe4", "a\ud800")
        ),
        (
            lambda: function(b"x"),
            TypeError,
            "token must be a str, got bytes; leave it out for an engine that asks for none",
        ),
    ]


def messages(function: Callable[[Any], Any]) -> list[tuple[Callable[[], Any], type, str]]:
    """Messages to play that are none."""
    return [
        (lambda: function("hello"), TypeError, "messages must be a list of texts, got str"),
        (lambda: function(None), TypeError, "messages must be a list of texts, got NoneType"),
        (lambda: function([]), ValueError, "messages must hold at least one text"),
        (lambda: function(["a", 7]), TypeError, "messages must hold texts, got int"),
    ]


def texts(function: Callable[[Any], Any], what: str) -> list[tuple[Callable[[], Any], type, str]]:
    """What is no list of texts."""
    return [
        (lambda: function("ab"), TypeError, f"{what} must be a list of texts, got str"),
        (lambda: function(None), TypeError, f"{what} must be a list of texts, got None"),
        (lambda: function(["a", b"b"]), TypeError, f"{what} must hold texts, got bytes"),
        (lambda: function({"a": 1}), TypeError, f"{what} must be a list of texts, got dict"),
        *(
            (
                lambda t=t: function(["a", t]),
                ValueError,
                f"{what} must hold texts without NUL or lone surrogates, got {t!r}",
            )
            for t in ("a\0b", "a\ud800")
        ),
    ]


def seconds(function: Callable[[Any], Any], what: str) -> list[tuple[Callable[[], Any], type, str]]:
    """What are no seconds to wait."""
    return [
        *(
            (lambda n=n: function(n), ValueError, f"{what} must be seconds above 0, got {n}")
            for n in (0, -1, math.inf, math.nan)
        ),
        *(
            (lambda v=v: function(v), TypeError, f"{what} must be seconds as a number, got {v!r}")
            for v in (True, "2", None)
        ),
    ]


def sessions() -> Any:
    """A client that must not be used."""
    return AgentSessionClient.__new__(AgentSessionClient)


CASES: list[tuple[Callable[[], Any], type, str]] = [
    *addresses(lambda v: options(server_address=v)),
    *addresses(lambda v: workers(server_address=v)),
    *addresses(lambda v: worker(server_address=v)),
    *addresses(lambda v: read_step_history(v, "s")),
    *addresses(lambda v: read_step_shape(v, "s")),
    *addresses(lambda v: read_session_history(v, "s")),
    *counts(lambda v: options(max_concurrent_tasks=v), "max_concurrent_tasks", 2),
    *counts(lambda v: options(idle_streams_per_queue=v), "idle_streams_per_queue", 1),
    *counts(lambda v: workers(processes=v), "processes", 1),
    *counts(lambda v: CompactionPolicy(10_000, kept_turns=v), "CompactionPolicy.kept_turns", 0),
    *tokens(lambda v: read_session_history(NOWHERE, "s", token=v)),
    *names(lambda v: read_step_history(NOWHERE, v), "session_id"),
    *names(lambda v: AdkAgentRunner(AGENT, user_id=v), "user_id"),
    *names(lambda v: AdkAgentRunner(AGENT, summary_model=v), "summary_model")[:-2],
    *names(lambda v: read_session_history(NOWHERE, v), "session_id"),
    *function_paths(lambda v: worker(flow=v), "flow"),
    *function_paths(lambda v: explore_crashes(v, ["x"]), "flow")[6:],
    *file_names(lambda v: explore_crashes("os:path", ["x"], ledger=v), "ledger", 255),
    *file_names(lambda v: failpoint_env([v], "/tmp"), "a failpoint", 240),
    *file_names(lambda v: failpoint_env([f"{v}=kill*2"], "/tmp"), "a failpoint", 240)[8:],
    *file_names(lambda v: is_failpoint_reached(v, "/tmp"), "name", 240),
    *(
        (
            lambda v=v: worker(env={v: "x"}),
            ValueError,
            f"env must have names of variables, which have no '=', got {v!r}",
        )
        for v in ("", "a=b", "=")
    ),
    *(
        (
            lambda f=f, v=v: f(data_dir=v),
            ValueError,
            "data_dir must be a folder, but '/dev/null' is a file",
        )
        for f in (worker, lambda **d: explore_crashes("os:path", ["x"], **d))
        for v in ("/dev/null", "/dev/null/a/b")
    ),
    *names(lambda v: ConnectionReference(v, "x"), "connector_id"),
    *names(lambda v: ConnectionReference("x", v), "name"),
    *names(lambda v: ConnectorToolSource([], source_name=v), "source_name", 200),
    *paths(lambda v: workers(cache_dir=v), "cache_dir"),
    *paths(lambda v: Ledger(v), "path"),
    *paths(lambda v: failpoint_env(["a"], v), "marker_dir"),
    *paths(lambda v: is_failpoint_reached("a", v), "marker_dir"),
    *paths(entered, "data_file"),
    *paths(lambda v: worker(data_dir=v), "data_dir"),
    *paths(LocalDirectoryMediaStore, "directory"),
    *messages(lambda v: play_session(NO, "s", v)),
    *messages(lambda v: explore_crashes("os:path", v)),
    *names(S3MediaStore, "bucket"),
    *names(lambda v: S3MediaStore("b", v), "prefix")[1:],
    *names(lambda v: StdioServer(v), "StdioServer.command"),
    *names(lambda v: McpToolSource(v, StdioServer("true")), "name", 200),
    *(
        (
            lambda t=t: McpToolSource("n", StdioServer("true"), tool_name_prefix=t),
            ValueError,
            "tool_name_prefix must be at most 64 letters, digits, _ and -, as models take them in "
            f"names of tools, got {shown}",
        )
        for t, shown in (
            (" ", "' '"),
            ("a b", "'a b'"),
            ("\xe4", "'ä'"),
            ("a\ud800", "'a\\ud800'"),
            ("x" * 65, f"'{'x' * 56}..."),
        )
    ),
    *(
        (
            lambda n=n: ToolCallStepOptions(maximum_attempts=n),
            ValueError,
            f"ToolCallStepOptions.maximum_attempts must be an int from 1 on, got {n}",
        )
        for n in (0, 2**31)
    ),
    (
        lambda: AgentSessionFlow(
            ScriptedRunner([]), flow_type="F", event_stream_capacity_bytes=10**30
        ),
        ValueError,
        f"event_stream_capacity_bytes must be at most {1 << 40}, got {10**30}",
    ),
    *(
        (
            lambda t=t: HttpServer("http://h/", headers={"Authorization": t}),
            ValueError,
            f"HttpServer.headers must {text}; look at that of 'Authorization'",
        )
        for t, text in (
            ("a\0", "map texts to texts without NUL or lone surrogates"),
            ("a\ud800", "map texts to texts without NUL or lone surrogates"),
        )
    ),
    (
        lambda: HttpServer("http://h/", headers={"Authorization": "secret\r\nX: y"}),
        ValueError,
        "HttpServer.headers must be of one line of printable text each; look at 'Authorization'",
    ),
    (
        lambda: StdioServer("true", env={"KEY": "a\0secret"}),
        ValueError,
        "StdioServer.env must map texts to texts without NUL or lone surrogates; look at that of 'KEY'",
    ),
    *(
        (
            lambda t=t: connector_call_id("f", t, "c", "o"),
            ValueError,
            f"step_execution_id must be a text without NUL or lone surrogates, got {t!r}",
        )
        for t in ("a\0", "a\ud800")
    ),
    *(
        (lambda t=t, make=make: make(t), ValueError, f"{what} must be like 't12', got {t!r}")
        for what, make in (("turn_id", TurnFold), ("Position.turn_id", Position))
        for t in ("", "t0", "t1/2", "../t1", "a\ud800")
    ),
    *paths(lambda v: StdioServer("true", cwd=v), "StdioServer.cwd"),
    *paths(lambda v: worker(python_path=[v]), "a folder of python_path"),
    *texts(lambda v: StdioServer("true", v), "StdioServer.args"),
    *texts(lambda v: explore_crashes("os:path", ["x"], repeatable=v), "repeatable"),
    *texts(
        lambda v: open_ui_stream(sessions(), "s", AiSdkEncoder("s"), after_interrupts=v),
        "after_interrupts",
    ),
    *seconds(lambda v: play_session(sessions(), "s", ["x"], timeout_s=v), "timeout_s"),
    *seconds(lambda v: explore_crashes("os:path", ["x"], timeout_s=v), "timeout_s"),
    *seconds(
        lambda v: open_ui_stream(sessions(), "s", AiSdkEncoder("s"), keep_alive_s=v), "keep_alive_s"
    ),
    (
        lambda: play_session(NO, "s", ["x"]),
        TypeError,
        "sessions must be an AgentSessionClient, got NoneType",
    ),
    (
        lambda: explore_crashes("os:path", ["x"], kill=NO),
        ValueError,
        "kill must be 'worker' or 'engine', got None",
    ),
    (
        lambda: step_shape(["RunModel"]),  # type: ignore[list-item]
        TypeError,
        "rows must hold StepRow objects, got str; read_step_history() gives them",
    ),
    (
        lambda: step_shape(NO),
        TypeError,
        "rows must be a list, got None; read_step_history() gives them",
    ),
    *(
        (
            lambda v=v: answer_approvals(sessions(), "s", v),
            TypeError,
            f"messages must {text}; it is messages of the body that useChat sends",
        )
        for v, text in (
            ("[]", "be a list, got str"),
            ({}, "be a list, got dict"),
            (["hi"], "hold Mapping objects, got str"),
        )
    ),
    (
        lambda: answer_resume(sessions(), "s", [{}]),  # type: ignore[list-item]
        TypeError,
        "entries must hold ResumeEntry objects, got dict; it is RunAgentInput.resume",
    ),
    (lambda: Position("t1", -1), ValueError, "Position.sent must be at least 0, got -1"),
    (lambda: Position("t1", True), TypeError, "Position.sent must be an int, got bool"),
    (
        lambda: Position.parse(NO),
        TypeError,
        "text must be a str, got NoneType; it is the header Last-Event-ID",
    ),
    *(
        (
            lambda n=n: ConnectorResult(ConnectorOutcome.RETRY, retry_after_s=n),
            ValueError,
            f"ConnectorResult.retry_after_s must be seconds from 0 on, got {n}; None leaves the "
            "delay to the session",
        )
        for n in (-1, math.inf, math.nan)
    ),
    (
        lambda: ConnectorResult("completed"),  # type: ignore[arg-type]
        TypeError,
        "ConnectorResult.outcome must be a ConnectorOutcome, got str",
    ),
    (
        lambda: StdioServer("true", env={"KEY": 7}),  # type: ignore[dict-item]
        TypeError,
        "StdioServer.env must map texts to texts, got int",
    ),
    (
        lambda: HttpServer("http://h/", headers={"Authorization": b"secret"}),  # type: ignore[dict-item]
        TypeError,
        "HttpServer.headers must map texts to texts, got bytes",
    ),
    (
        lambda: AgentMessage(MessageRole.USER, {}, images=["a"]),  # type: ignore[list-item]
        TypeError,
        "AgentMessage.images must hold ImageReference objects, got str; put_image gives them",
    ),
    (
        lambda: TokenUsage(True),
        TypeError,
        "TokenUsage.input_tokens must be an int, got bool",
    ),
    (
        lambda: RequestedToolCall("c", "t", {}, ToolEffect.READ, False, timeout_s=1.5),  # type: ignore[arg-type]
        TypeError,
        "RequestedToolCall.timeout_s must be an int or None, got float",
    ),
    (lambda: options(app_worker_id=7), TypeError, "app_worker_id must be a str, got int"),
    (
        lambda: failpoint_env("tool.after_call", "/tmp"),
        TypeError,
        "failpoints must be a list of names, got 'tool.after_call'",
    ),
    (
        lambda: failpoint_env(["a,b"], "/tmp"),
        ValueError,
        "a failpoint must not have a comma, got 'a,b'; list it twice",
    ),
    (
        lambda: explore_crashes(NO, ["x"]),
        TypeError,
        "flow must be a function or a text like 'module:function', got NoneType",
    ),
    (
        lambda: connector_call_id(NO, "s", "c", "o"),
        TypeError,
        "flow_id must be a str, got NoneType",
    ),
    (
        lambda: connector_call_id("f", "s", "c", NO),
        TypeError,
        "operation_id must be a str, got NoneType",
    ),
    (
        lambda: ConnectorToolSource(NO),
        TypeError,
        "tools must be a Sequence, got NoneType; list what connector_tool() makes",
    ),
    *flow_types(flow_mermaid),
    *flow_types(render_session_flow_graph),
    *flow_types(lambda v: AgentSessionFlow(ScriptedRunner([]), flow_type=v)),
    (lambda: history_svg("s"), TypeError, HISTORY),  # type: ignore[arg-type]
    (lambda: history_mermaid("s"), TypeError, HISTORY),  # type: ignore[arg-type]
    (lambda: AiSdkEncoder(NO), TypeError, "session_id must be a str, got NoneType"),
    (
        lambda: AiSdkEncoder("s", options=7),  # type: ignore[arg-type]
        TypeError,
        "options must be a UiStreamOptions, got int",
    ),
    (lambda: TurnFold(NO), TypeError, "turn_id must be a str, got NoneType; such as 't1'"),
    (
        lambda: UiStreamOptions(show_errors=1),  # type: ignore[arg-type]
        TypeError,
        "show_errors must be True or False, got 1",
    ),
    (
        lambda: AdkSessionRunner(NO, NO),
        TypeError,
        "sessions must be an AgentSessionClient, got NoneType",
    ),
    (
        lambda: idempotency_key_for_tool_call(NO),
        TypeError,
        "tool_context must be the ToolContext that ADK gives the tool, got NoneType",
    ),
]


async def finished(use: Callable[[], Any]) -> Any:
    result = use()
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize(
    ("use", "kind", "text"), CASES, ids=[str(number) for number in range(len(CASES))]
)
async def test_a_wrong_argument_is_refused_by_name(
    use: Callable[[], Any],
    kind: type[Exception],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        await finished(use)
    assert list(tmp_path.iterdir()) == []
