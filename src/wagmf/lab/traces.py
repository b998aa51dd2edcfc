"""Figures as plotly.js takes them: plain dictionaries, without colours, which the page adds as its theme has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wagmf.lab.looks import Dots, Line, Mark, Panel, Style, label, styles

__all__ = ["dots_figure", "panel_figure"]


def panel_figure(views: Sequence[Panel], methods: Sequence[str]) -> dict[str, Any]:
    """A panel as plotly.js takes it, in several views (step sizes) of which the page shows one at a time.

    Colours are left to the page, which knows whether it is light or dark: every trace says which of ``methods`` it is.

    >>> line = Line("wada", np.array([1, 2]), np.array([0.5, 0.25]))
    >>> page = panel_figure([Panel("Loss", "epoch", "loss", (line,), ())], ["adam", "wada"])
    >>> page["views"][0]["data"][0]["meta"]
    {'method': 1, 'role': 'line'}
    """
    first = views[0]
    across: dict[str, Any] = {"title": {"text": first.across}, "type": "log" if first.log_x else "linear"}
    rates = first.rates
    if first.log_x and len(rates) <= 10:
        across |= {"tickvals": rates, "ticktext": [f"{rate:g}" for rate in rates]}
    looks = styles(methods)
    layout: dict[str, Any] = {"xaxis": across, "hovermode": "closest" if first.log_x else "x unified"}
    if first.ceiling is not None:
        height = float(np.log10(first.ceiling)) if first.log_y else first.ceiling
        layout["shapes"] = [_rule("y", first.ceiling, "x")]
        layout["annotations"] = [
            {
                "xref": "paper", "x": 0.01, "xanchor": "left", "y": height, "yanchor": "bottom", "text": "diverged",
                "showarrow": False,
            }
        ]  # fmt: skip
    return {
        "layout": layout,
        "views": [{"data": _traces(view, methods, looks), "yaxis": _upright(view)} for view in views],
    }


def dots_figure(dots: Dots, methods: Sequence[str]) -> dict[str, Any]:
    """Values and intervals as plotly.js takes them, the best on top.

    >>> ranks = Dots("Ranking", "probability", ("wada",), np.array([0.9]), np.array([0.8]), np.array([1.0]), 0.5)
    >>> dots_figure(ranks, ["wada"])["views"][0]["data"][0]["x"]
    [0.9]
    """
    looks, last = styles(methods), len(dots.methods) - 1
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": _plain(label(name)), "x": _short([value]), "y": [last - k],
            "marker": {"symbol": looks[name].marker, "size": 10},
            "meta": {"method": methods.index(name), "role": "dot"},
            "error_x": {"type": "data", "symmetric": False, "array": _short([high - value]),
                        "arrayminus": _short([value - low]), "thickness": 2, "width": 5},
            "hovertemplate": "%{x:.2f}",
        }
        for k, (name, value, low, high) in enumerate(
            zip(dots.methods, dots.values, dots.low, dots.high, strict=True)
        )
    ]  # fmt: skip
    names = [_plain(label(name)) for name in reversed(dots.methods)]
    upright = {
        "range": [-0.6, last + 0.6], "tickvals": list(range(last + 1)), "ticktext": names, "showgrid": False,
        "automargin": True,
    }  # fmt: skip
    across = {"title": {"text": dots.across}, "range": [-0.02, 1.02], "tickformat": ".1f"}
    return {
        "layout": {"xaxis": across, "hovermode": "closest", "shapes": [_rule("x", dots.guide, "y")]},
        "views": [{"data": traces, "yaxis": upright}],
    }


def _rule(axis: str, at: float, other: str) -> dict[str, Any]:
    """A dotted line across the whole panel, at one value of ``axis``."""
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}ref": "paper", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", **ends, "line": {"dash": "dot", "width": 1}}


def _traces(panel: Panel, methods: Sequence[str], looks: Mapping[str, Style]) -> list[dict[str, Any]]:
    """Bands first, so that no band lies over a line."""
    lines = [line for line in panel.lines if line.x.size]
    bands = [_band(line, methods.index(line.method)) for line in lines if line.low is not None]
    strokes = [_stroke(panel, line, methods.index(line.method), looks[line.method]) for line in lines]
    marks = [_mark(mark, methods.index(mark.method), looks[mark.method]) for mark in panel.marks]
    return bands + strokes + marks


def _band(line: Line, k: int) -> dict[str, Any]:
    low, high = np.asarray(line.low), np.asarray(line.high)
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "hoverinfo": "skip", "line": {"width": 0},
        "x": _short(np.r_[line.x, line.x[::-1]]), "y": _short(np.r_[low, high[::-1]]),
        "meta": {"method": k, "role": "band"},
    }  # fmt: skip


def _stroke(panel: Panel, line: Line, k: int, look: Style) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines+markers" if panel.few else "lines",
        "name": _plain(label(line.method)), "x": _short(line.x), "y": _short(line.y),
        "line": {"width": 2, "dash": ",".join(f"{length:g}px" for length in look.dash) or "solid"},
        "marker": {"symbol": look.marker, "size": 7}, "meta": {"method": k, "role": "line"},
        "hovertemplate": "%{y:.2%}" if panel.percent else "%{y:.4g}",
    }  # fmt: skip


def _mark(mark: Mark, k: int, look: Style) -> dict[str, Any]:
    chosen = mark.kind == "chosen"
    marker = {"symbol": f"{look.marker}-open", "size": 14} if chosen else {"symbol": "x", "size": 9}
    return {
        "type": "scatter", "mode": "markers", "name": _plain(label(mark.method)), "x": _short([mark.x]),
        "y": _short([mark.y]), "marker": marker, "meta": {"method": k, "role": mark.kind}, "text": [_plain(mark.text)],
        "hovertemplate": "%{text}",
    }  # fmt: skip


def _upright(panel: Panel) -> dict[str, Any]:
    low, high = panel.limits
    upright: dict[str, Any] = {"title": {"text": panel.up}, "type": "log" if panel.log_y else "linear"}
    if panel.log_y:
        ticks = {"tickvals": _short(panel.ticks), "ticktext": [f"{tick:g}" for tick in panel.ticks]}
        return upright | {"range": _short(np.log10([low, high]))} | ticks
    return upright | {"range": _short([low, high])} | ({"tickformat": ",.1~%"} if panel.percent else {})


def _short(values: Any) -> list[float | None]:
    """Six digits are more than a screen shows; JSON has no NaN."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float)]


def _plain(text: str, most: int = 24) -> str:
    """Plotly reads tags and entities in its texts: none of ours are meant as such."""
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
