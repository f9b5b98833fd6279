"""A session's turn as a stream for a user interface.

``open_ui_stream`` gives server-sent events in the UI message stream protocol of the AI SDK
(:class:`AiSdkEncoder`) or of AG-UI (``dex_agents.ui_stream.ag_ui``, needs the extra ``ag-ui``).
"""

from __future__ import annotations

from dex_agents.ui_stream._ai_sdk import AI_SDK_HEADERS, AiSdkEncoder, AiSdkVersion
from dex_agents.ui_stream._answers import answer_approvals
from dex_agents.ui_stream._changes import Change
from dex_agents.ui_stream._fold import TurnFold
from dex_agents.ui_stream._follow import Position, UiEncoder, open_ui_stream
from dex_agents.ui_stream._options import UiStreamOptions

__all__ = [
    "AI_SDK_HEADERS",
    "AiSdkEncoder",
    "AiSdkVersion",
    "Change",
    "Position",
    "TurnFold",
    "UiEncoder",
    "UiStreamOptions",
    "answer_approvals",
    "open_ui_stream",
]
