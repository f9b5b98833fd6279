"""An ADK that was not tested gives a warning when a runner is built."""

from __future__ import annotations

import warnings

import pytest
from google.adk.agents.llm_agent import LlmAgent

from dex_agents_google_adk import AdkAgentRunner, _adk_version


def _build() -> None:
    AdkAgentRunner(LlmAgent(name="root", model="gemini-flash"))


def test_the_installed_version_is_tested() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _build()


@pytest.mark.parametrize("installed", ["2.14.0", "2.130.1", "3.0.0"])
def test_another_version_warns(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_adk_version, "version", lambda _: installed)
    with pytest.warns(UserWarning, match=rf"google-adk {installed} is installed.*<2\.14"):
        _build()
