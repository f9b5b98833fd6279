"""One module for each defect or cost of ADK that the adapter works around.

Each that touches a function of ADK checks its shape, and steps aside with an
:class:`AdkWorkaroundWarning` when ADK has changed. Each has a row in ``docs/guide/adk-defects.md``
and in ``tests/adk_canaries/test_defects.py``, whose canary fails when ADK has mended the defect.
"""

from __future__ import annotations


class AdkWorkaroundWarning(UserWarning):
    """ADK no longer looks as a workaround expects, so the workaround is off."""
