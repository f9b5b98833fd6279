"""Shared helpers explain their failed assertions as tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support.adk_oracle")
