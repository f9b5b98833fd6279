"""The page of protocol rules leaves out no number, and its tests are there."""

from __future__ import annotations

from support.requirements import PROTOCOL_FILE, REPOSITORY, faults, read_rows

# How many numbered rules each section of the protocol has; 0 for one that is a rule itself.
RULES = {
    "2.1": 5,
    "2.2": 0,
    "2.3": 0,
    "2.4": 4,
    "2.5": 5,
    "2.6": 5,
    "2.7": 4,
    "2.8": 4,
    "4.1": 8,
    "4.2": 0,
    "4.3": 3,
    "4.4": 0,
    "5.1": 3,
    "5.2": 4,
    "5.3": 5,
    "5.4": 5,
    "5.5": 4,
    "5.6": 3,
    "5.7": 0,
    "5.8": 0,
    "5.9": 3,
    "5.10": 0,
    "6.1": 0,
    "6.2": 0,
    "6.3": 5,
    "6.4": 0,
    "6.5": 0,
    "7": 7,
    "8": 8,
    "9.1": 0,
    "9.2": 9,
    "10": 8,
    "11": 7,
    "12": 6,
    "13": 6,
    "14": 4,
    "15": 5,
    "16": 3,
    "17": 14,
}
ITSELF_TOO = {"2.6"}  # a table, and rules below it


def _ids() -> list[str]:
    found = []
    for section, count in RULES.items():
        if not count or section in ITSELF_TOO:
            found.append(f"P{section}")
        found += [f"P{section}.{number}" for number in range(1, count + 1)]
    return found


def test_every_rule_has_its_tests() -> None:
    rows = read_rows(PROTOCOL_FILE)
    assert faults(rows, REPOSITORY, _ids()) == []
    assert [row.row_id for row in rows if not row.tests] == []
