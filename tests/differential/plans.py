"""The agents of the differential suite by session id, such as ``tree-17``."""

from __future__ import annotations

from differential.kit import KINDS
from support.random_trees import Plan, random_tree, random_workflow

MESSAGES = ("go", "again")


def plan_of(session_id: str) -> Plan:
    """The agent and the answers of its models.

    Ids of calls are ADK's for every fifth seed, the models' own for the others.
    """
    kind, _, seed = session_id.partition("-")
    make = {"tree": random_tree, "workflow": random_workflow}[kind]
    plan = make(int(seed), KINDS)
    plan.has_ids = int(seed) % 5 != 0
    return plan
