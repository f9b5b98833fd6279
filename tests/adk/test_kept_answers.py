"""Which model answers an attempt keeps, and which of them the next one takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from dex_agents_google_adk._kept_answers import KeptAnswers
from support.adk_oracle import answer, text
from support.checkpoint import Checkpoint

BRANCH = "root.one"


class Model(BaseLlm):
    model: str = "m"
    responses: list[LlmResponse] = []  # noqa: RUF012
    asked: int = 0

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked += 1
        for response in self.responses:
            yield response


def request(word: str, **config: Any) -> LlmRequest:
    content = types.Content(role="user", parts=[text(word)])
    return LlmRequest(model="m", contents=[content], config=types.GenerateContentConfig(**config))


async def ask(
    checkpoint: Checkpoint | None, model: Model, asked: LlmRequest, branch: str | None = BRANCH
) -> list[LlmResponse]:
    """Ask as a new attempt does."""
    used = KeptAnswers(checkpoint).model_for("one", branch, model)
    return [response async for response in used.generate_content_async(asked, True)]


async def test_the_same_request_gets_the_whole_answer_without_its_chunks() -> None:
    checkpoint = Checkpoint()
    model = Model(
        responses=[
            answer(text("he"), partial=True),
            answer(
                text("hello"), types.Part(inline_data=types.Blob(data=b"\xff", mime_type="x/y"))
            ),
        ]
    )
    assert len(await ask(checkpoint, model, request("go"))) == 2
    again = await ask(checkpoint, model, request("go"))
    assert again == model.responses[1:]
    assert model.asked == 1


@pytest.mark.parametrize(
    "other", [request("stop"), request("go", temperature=0.5)], ids=["contents", "config"]
)
async def test_another_request_is_asked(other: LlmRequest) -> None:
    checkpoint, model = Checkpoint(), Model(responses=[answer(text("hello"))])
    await ask(checkpoint, model, request("go"))
    await ask(checkpoint, model, other)
    assert model.asked == 2


async def test_branches_do_not_share_answers() -> None:
    checkpoint, model = Checkpoint(), Model(responses=[answer(text("hello"))])
    for branch in ("root.one", "root.two", "root.one", "root.two"):
        await ask(checkpoint, model, request("go"), branch)
    assert model.asked == 2


async def test_an_error_is_not_kept() -> None:
    checkpoint = Checkpoint()
    model = Model(responses=[LlmResponse(error_code="SAFETY", error_message="no")])
    await ask(checkpoint, model, request("go"))
    await ask(checkpoint, model, request("go"))
    assert model.asked == 2
    assert checkpoint.last is None


async def test_an_answer_that_does_not_fit_leaves_the_others() -> None:
    checkpoint = Checkpoint(limit=2_000)
    small, large = (
        Model(responses=[answer(text("x"))]),
        Model(responses=[answer(text("x" * 3_000))]),
    )
    for _ in range(2):
        await ask(checkpoint, small, request("go"), "root.one")
        await ask(checkpoint, large, request("go"), "root.two")
    assert (small.asked, large.asked) == (1, 2)


@pytest.mark.parametrize("branch,checkpoint", [(None, Checkpoint()), (BRANCH, None)])
async def test_outside_a_branch_or_a_step_nothing_is_kept(
    branch: str | None, checkpoint: Checkpoint | None
) -> None:
    model = Model(responses=[answer(text("hello"))])
    assert KeptAnswers(checkpoint).model_for("one", branch, model) is model


async def test_what_a_later_release_has_kept_is_left_alone() -> None:
    checkpoint, model = Checkpoint(), Model(responses=[answer(text("hello"))])
    await checkpoint.keep({"version": 99, "answers": "?"})
    await ask(checkpoint, model, request("go"))
    assert model.asked == 1
