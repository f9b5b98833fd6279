"""Shared helpers explain their failed assertions as tests do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support.tree_oracle", "differential.judge")
