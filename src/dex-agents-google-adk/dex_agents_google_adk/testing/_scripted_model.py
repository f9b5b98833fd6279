"""A model that answers from a script, by looking at nothing but the request."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import PrivateAttr

from dex_agents import AgentTurnError, Json
from dex_agents._arguments import check_instance, check_name, check_seconds
from dex_agents.testing import Ledger

ScriptedAnswer: TypeAlias = str | types.Part | Sequence[str | types.Part] | LlmResponse | Exception
"""A text, a part, several of them, a whole response, or an error to raise."""

ScriptedResponder: TypeAlias = Callable[[LlmRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]
"""Makes the answer to a request, the same one whenever it is asked; may be ``async``."""

_CHARACTERS_PER_TOKEN = 4
_ANSWERS = "a text, a Part, a list of them, an LlmResponse or an exception"


class ScriptedModel(BaseLlm):
    """Answers from a script; needs no provider, no key and no network.

    It keeps nothing in memory: which answer is due follows from the request alone. So any Worker
    process can go on with a session, also after a kill, and a model call that is made again gets
    the same answer. Its token counts are a quarter of the characters; an ``LlmResponse`` has its own.

    Args:
        script: The answers in order, over all turns: a request that holds ``n`` responses of this
            agent's model gets ``script[n]``. An entry may be a function of the request. Or one
            function for all requests, which suits sessions of any length. An exception is raised
            whenever its answer is due, so it fails every attempt of the model call.
        model: Name of the model in the request.
        ledger: Where to note each request as an entry ``asked`` with ``contents``, ``instruction``
            and ``tools`` (names); :func:`dex_agents.testing.explore_crashes` compares them.
        word_delay_s: Seconds before each word where ADK asks for a stream. It then gets every text
            by words, and the whole answer after them.

    Raises:
        TypeError, ValueError: An argument is none, or the script is empty.
    """

    _script: Sequence[ScriptedAnswer | ScriptedResponder] | ScriptedResponder = PrivateAttr()
    _ledger: Ledger | None = PrivateAttr()
    _word_delay_s: float = PrivateAttr()

    def __init__(
        self,
        script: Sequence[ScriptedAnswer | ScriptedResponder] | ScriptedResponder,
        *,
        model: str = "scripted",
        ledger: Ledger | None = None,
        word_delay_s: float = 0.0,
    ) -> None:
        _check_script(script)
        check_name("model", model)
        if ledger is not None:
            check_instance("ledger", ledger, Ledger)
        if word_delay_s != 0:
            check_seconds("word_delay_s", word_delay_s)
        super().__init__(model=model)
        self._script = script if callable(script) else tuple(script)
        self._ledger = ledger
        self._word_delay_s = word_delay_s

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """The answer to a request.

        Raises:
            AgentTurnError: The script has no answer for it; the turn fails at once.
            Exception: The script says so.
        """
        if self._ledger is not None:
            self._ledger.record("asked", **_noted(llm_request))
        response = _response(await self._answer(llm_request), llm_request)
        if stream:
            for word in _words(response):
                await asyncio.sleep(self._word_delay_s)
                part = types.Part(text=word)
                yield LlmResponse(content=types.Content(role="model", parts=[part]), partial=True)
        yield response

    async def _answer(self, request: LlmRequest) -> ScriptedAnswer:
        due = self._due(request)
        if not callable(due):
            return due
        answer = due(request)
        return await answer if inspect.isawaitable(answer) else answer

    def _due(self, request: LlmRequest) -> ScriptedAnswer | ScriptedResponder:
        script = self._script
        if callable(script):
            return script
        answered = sum(content.role == "model" for content in request.contents)
        if answered >= len(script):
            raise AgentTurnError(
                f"the script of model {self.model!r} has {len(script)} answers and is asked for "
                f"one more; add it, or give a function of the request"
            )
        return script[answered]


def tool_call(name: str, arguments: Mapping[str, Json] | None = None) -> types.Part:
    """The part of an answer that calls a tool; ADK gives the call its id.

    Args:
        name: Name of the tool.
        arguments: JSON values by name; none if left out.

    Raises:
        TypeError, ValueError: An argument is none.
    """
    check_name("name", name)
    if arguments is not None and not isinstance(arguments, Mapping):
        raise TypeError(f"arguments must be a mapping, got {type(arguments).__name__}")
    return types.Part(function_call=types.FunctionCall(name=name, args=dict(arguments or {})))


def tool_results(request: LlmRequest) -> list[types.FunctionResponse]:
    """What the calls of the newest answer gave, in order; none if a message of the user is newer.

    Raises:
        TypeError: The request is none.
    """
    check_instance("request", request, LlmRequest, "a model's generate_content_async gets one")
    parts = (request.contents[-1].parts or []) if request.contents else []
    return [part.function_response for part in parts if part.function_response is not None]


def _check_script(script: object) -> None:
    if callable(script):
        return
    if isinstance(script, str | bytes) or not isinstance(script, Sequence):
        raise TypeError(
            f"script must be a list of answers or a function of the request, got {script!r:.80}"
        )
    if not script:
        raise ValueError("script must hold at least one answer")
    for number, entry in enumerate(script):
        if not callable(entry) and not _is_answer(entry):
            raise TypeError(
                f"script[{number}] must be {_ANSWERS}, or a function of the request that gives one, "
                f"got {entry!r:.80}"
            )


def _is_answer(entry: object) -> bool:
    if isinstance(entry, str | types.Part | LlmResponse | Exception):
        return True
    is_list = isinstance(entry, Sequence) and not isinstance(entry, bytes) and bool(entry)
    return is_list and all(isinstance(part, str | types.Part) for part in entry)  # type: ignore[attr-defined]


def _response(answer: ScriptedAnswer, request: LlmRequest) -> LlmResponse:
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, LlmResponse):
        return answer.model_copy(deep=True)
    if not _is_answer(answer):
        raise TypeError(f"what the script's function gives must be {_ANSWERS}, got {answer!r:.80}")
    given = [answer] if isinstance(answer, str | types.Part) else answer
    parts = [
        types.Part(text=part) if isinstance(part, str) else part.model_copy(deep=True)
        for part in given
    ]
    content = types.Content(role="model", parts=parts)
    return LlmResponse(
        content=content,
        finish_reason=types.FinishReason.STOP,
        usage_metadata=types.GenerateContentResponseUsageMetadata(
            prompt_token_count=_tokens(request.contents), candidates_token_count=_tokens([content])
        ),
    )


def _tokens(contents: Sequence[types.Content]) -> int:
    """A rough count, the same for the same contents."""
    size = sum(len(content.model_dump_json(exclude_none=True)) for content in contents)
    return max(1, size // _CHARACTERS_PER_TOKEN)


def _words(response: LlmResponse) -> list[str]:
    """The texts of a response, cut behind each blank."""
    parts = (response.content.parts if response.content else None) or []
    texts = [part.text for part in parts if part.text and not part.thought]
    return [word for text in texts for word in re.findall(r"\S+\s*|\s+", text)]


def _noted(request: LlmRequest) -> dict[str, Any]:
    """What a ledger keeps of a request."""
    instruction = request.config.system_instruction
    return {
        "contents": [
            content.model_dump(mode="json", exclude_none=True) for content in request.contents
        ],
        "instruction": instruction if isinstance(instruction, str) else "",
        "tools": sorted(request.tools_dict),
    }
