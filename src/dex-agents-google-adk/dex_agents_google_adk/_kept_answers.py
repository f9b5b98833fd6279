"""Model answers that arrived before their attempt died are not asked for again.

Branches side by side ask their models in one ``RunModel``. What one of them was answered while
another still waits goes into the Step's checkpoint; the next attempt gives it to ADK in the model's
place, if the request is the same. Everything around the call runs as ever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from dex_agents._contract import Json, StepCheckpoint
from dex_agents_google_adk._json import to_json

_VERSION = 1
_REQUEST_FIELDS = {"model", "contents", "config"}
_Key = tuple[str, str]


class KeptAnswers:
    """What the model calls of one attempt were answered, and those of the attempts before.

    Args:
        checkpoint: Of the ``RunModel``, or ``None`` where nothing can be kept.
    """

    def __init__(self, checkpoint: StepCheckpoint | None) -> None:
        self._checkpoint = checkpoint
        self._answers: dict[_Key, dict[str, Json]] = {}
        last = checkpoint.last if checkpoint is not None else None
        if isinstance(last, dict) and last.get("version") == _VERSION:
            for answer in last["answers"]:
                self._answers[answer["agent"], answer["branch"]] = answer

    def model_for(self, agent: str, branch: str | None, model: BaseLlm) -> Any:
        """What ADK calls in place of an agent's model.

        Outside a branch the attempt ends with the answer, so there is nothing to keep.
        """
        if self._checkpoint is None or branch is None:
            return model
        return _KeepingModel(self, (agent, branch), model)

    def find(self, key: _Key, digest: str) -> list[LlmResponse] | None:
        """The answer to this very request, if there is one."""
        answer = self._answers.get(key)
        if answer is None or answer["request"] != digest:
            return None
        return [LlmResponse.model_validate(item) for item in answer["responses"]]

    async def keep(self, key: _Key, digest: str, responses: list[Json]) -> None:
        """Keep an answer, if all that are kept fit."""
        answer = {
            "agent": key[0],
            "branch": key[1],
            "request": digest,
            "responses": responses,
        }
        answers = {**self._answers, key: answer}
        assert self._checkpoint is not None
        try:
            await self._checkpoint.keep({"version": _VERSION, "answers": list(answers.values())})
        except ValueError:
            return  # too large: a crash would ask for it again
        self._answers = answers


@dataclass(frozen=True)
class _KeepingModel:
    kept: KeptAnswers
    key: _Key
    model: BaseLlm

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        digest = _digest(llm_request)
        known = self.kept.find(self.key, digest)
        if known is not None:
            for response in known:
                yield response
            return
        answers: list[LlmResponse] = []
        async with aclosing(self.model.generate_content_async(llm_request, stream)) as responses:
            async for response in responses:
                if not response.partial:
                    # Callbacks may change what they are given.
                    answers.append(response.model_copy(deep=True))
                yield response
        if answers and not any(answer.error_code for answer in answers):
            items = [
                answer.model_dump(mode="json", exclude_none=True, fallback=to_json)
                for answer in answers
            ]
            await self.kept.keep(self.key, digest, items)


def _digest(request: LlmRequest) -> str:
    shown = request.model_dump(
        mode="json", exclude_none=True, include=_REQUEST_FIELDS, fallback=to_json
    )
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()
