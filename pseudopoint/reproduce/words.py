"""Results as lines for people."""

from typing import Any

__all__ = ["in_lines"]


def in_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """A listing, or what a run came to, as (label, text) pairs."""
    if "report" not in result:
        return [(entry["name"], _about(entry)) for entry in result["experiments"]]
    lines = [
        (entry["name"], f"{entry['verdict']} ({entry['rows']} of {entry['wanted']} rows): {entry['why']}")
        for entry in result["experiments"]
    ]
    return [*lines, ("report", result["report"])]


def _about(entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"cannot be used: {entry['error']}"
    tables = f"tables {', '.join(entry['tables'])}" if entry["tables"] else "synthetic data"
    return f"{entry['source']}. {entry['about']} [{tables}; {entry['rows']} of {entry['wanted']} rows]"
