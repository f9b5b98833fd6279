"""Stages of the core's tests, for streams of real sessions."""

from __future__ import annotations

from core.conftest import stages

__all__ = ["stages"]
