"""One module for each defect or cost of ADK that the adapter works around.

Each checks the shape of what it touches and steps aside with an :class:`AdkWorkaroundWarning` when
ADK has changed. Canaries in ``tests/adk_canaries`` fail when that shape changes, and those of
``test_defects.py`` also when ADK has mended the defect.
"""

from __future__ import annotations


class AdkWorkaroundWarning(UserWarning):
    """ADK no longer looks as a workaround expects, so the workaround is off."""
