"""The plots of a report as one page that works offline: Plotly is included."""

from __future__ import annotations

from html import escape
from typing import Any

PROJECTS = 12


def page(found: dict[str, Any]) -> str:
    """Return an HTML page with waits, utilisation, metrics by load, results by project, and attempts by node."""
    import plotly.graph_objects as go  # a large import, needed only here

    figures = [_curves(go, found, "wait", "seconds waited until the first start", "share of stages")]
    figures.append(
        _curves(go, found, "utilisation", "seconds since the first submission", "share of accelerators held")
    )
    loads = list(dict.fromkeys(row["load"] for row in found["summary"]))
    if len(loads) > 1:
        figures.append(_sweep(go, found, loads))
    figures.append(_projects(go, found))
    figures += [_gantt(go, cell) for cell in found["cells"] if cell["gantt"]]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=(number == 0), config={"displaylogo": False})
        for number, figure in enumerate(figures)
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in found["notes"])
    title = escape(f"{found['name']}: {found['stages']:,} simulated stages")
    text = f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><ul>{notes}</ul>" + "".join(parts)
    return str(text)


def _name(cell: dict[str, Any], found: dict[str, Any]) -> str:
    many = len({(one["load"], one["seed"]) for one in found["cells"]}) > 1
    return str(cell["profile"]) + (f" x{cell['load']:g} seed {cell['seed']}" if many else "")


def _curves(go: Any, found: dict[str, Any], what: str, x: str, y: str) -> Any:
    figure = go.Figure()
    for cell in found["cells"]:
        figure.add_scatter(x=cell[what]["x"], y=cell[what]["y"], mode="lines", name=_name(cell, found))
    figure.update_layout(title=what, xaxis_title=x, yaxis_title=y)
    return figure


def _sweep(go: Any, found: dict[str, Any], loads: list[float]) -> Any:
    figure = go.Figure()
    for profile in dict.fromkeys(row["profile"] for row in found["summary"]):
        rows = [row for row in found["summary"] if row["profile"] == profile]
        spread = {"type": "data", "array": [row["spread"].get("wait_avg_s", 0.0) for row in rows]}
        waits = [row["figures"]["wait_avg_s"] for row in rows]
        figure.add_scatter(x=[row["load"] for row in rows], y=waits, error_y=spread, name=profile)
    figure.update_layout(title="mean wait by load", xaxis_title="load", yaxis_title="seconds")
    return figure


def _projects(go: Any, found: dict[str, Any]) -> Any:
    figure = go.Figure()
    for cell in found["cells"]:
        if cell["gantt"]:
            rows = cell["projects"][:PROJECTS]
            names = [row["project"] for row in rows]
            figure.add_bar(x=names, y=[row["slowdown"] for row in rows], name=_name(cell, found))
    figure.update_layout(title="mean slowdown by project", barmode="group")
    return figure


def _gantt(go: Any, cell: dict[str, Any]) -> Any:
    figure = go.Figure()
    bars = cell["gantt"]["bars"]
    for project in sorted({bar["project"] for bar in bars}):
        own = [bar for bar in bars if bar["project"] == project]
        figure.add_bar(
            orientation="h",
            y=[bar["lane"] for bar in own],
            base=[bar["from"] for bar in own],
            x=[bar["to"] - bar["from"] for bar in own],
            text=[bar["stage"] for bar in own],
            name=project,
            opacity=0.6,
        )
    height = 160 + 18 * len(cell["gantt"]["lanes"])
    figure.update_layout(title=f"{cell['profile']} x{cell['load']:g}: who ran where", barmode="overlay", height=height)
    return figure
