"""Figures, as functions of records: nothing here trains or simulates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wagmf.lab.files import write_whole
from wagmf.lab.walks import Record, best_rate
from wagmf.methods import METHODS, method

__all__ = ["figure1_page", "figure1_picture"]

# Okabe and Ito's colours, which colour-blind readers can tell apart; the paper's six methods keep theirs everywhere.
_COLOURS = {
    "adam": "#D55E00",
    "amsgrad": "#E69F00",
    "adamnc": "#CC79A7",
    "wada": "#0072B2",
    "wada_v3": "#56B4E9",
    "wada_v4": "#009E73",
}
_OTHERS = ("#000000", "#8C8C8C", "#7F5F00", "#5B2A86", "#2A6F3B", "#A0522D")


@dataclass(frozen=True)
class _Curve:
    """One method in one panel: the median over seeds, and their quartiles."""

    method: str
    at: NDArray[Any]
    median: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]


@dataclass(frozen=True)
class _Panel:
    title: str
    across: str
    up: str
    best: float
    limits: tuple[float, float]
    curves: list[_Curve]


def figure1_picture(records: list[Record], path: Path) -> Path:
    """Figure 1 as a picture (the file's ending says which kind): every method at its best step size.

    >>> import tempfile
    >>> from wagmf.online import Task, simulate
    >>> task = Task(method("wada").rule, 1000, (0.1, 1.0))
    >>> figure1_picture([Record("wada", task, simulate(**vars(task)))], Path(tempfile.mkdtemp()) / "figure1.png").name
    'figure1.png'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.8), layout="constrained")
    for axis, panel in zip(figure.subplots(2, 2).ravel(), _panels(records, None), strict=True):
        for curve in panel.curves:
            colour, marker = _colour(curve.method), "o" if curve.at.size < 30 else None
            axis.plot(curve.at, curve.median, color=colour, marker=marker, ms=3, label=method(curve.method).title)
            axis.fill_between(curve.at, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(panel.best, color="0.5", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", title=panel.title, xlabel=panel.across, ylabel=panel.up, ylim=panel.limits)
        axis.grid(alpha=0.25)
    legend = {
        label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(f"{_headline(records)}; each method at its best step size", fontsize=10)
    return write_whole(path, lambda new: figure.savefig(new, dpi=150))


def figure1_page(records: list[Record], path: Path) -> Path:
    """Figure 1 as one offline HTML page: a menu picks the step size, the legend picks the methods.

    >>> import tempfile
    >>> from wagmf.online import Task, simulate
    >>> task = Task(method("wada").rule, 1000, (0.1, 1.0))
    >>> page = figure1_page([Record("wada", task, simulate(**vars(task)))], Path(tempfile.mkdtemp()) / "figure1.html")
    >>> "<script src=" in page.read_text()
    False
    """
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    lrs = records[0].task.lrs
    choices: list[int | None] = [None, *range(len(lrs))]
    panels = {choice: _panels(records, choice) for choice in choices}
    figure: Any = make_subplots(
        2, 2, subplot_titles=[panel.title for panel in panels[None]], horizontal_spacing=0.09, vertical_spacing=0.13
    )
    shown: list[int | None] = []
    for choice in choices:
        named: set[str] = set()
        for place, panel in enumerate(panels[choice]):
            for curve in panel.curves:
                colour, title = _colour(curve.method), method(curve.method).title
                common = {"legendgroup": title, "visible": choice is None, "name": title}
                band = Scatter(
                    x=np.r_[curve.at, curve.at[::-1]], y=np.r_[curve.low, curve.high[::-1]], fill="toself",
                    mode="none", fillcolor=colour, opacity=0.15, showlegend=False, hoverinfo="skip", **common,
                )  # fmt: skip
                line = Scatter(
                    x=curve.at, y=curve.median, line={"color": colour}, showlegend=title not in named,
                    mode="lines+markers" if curve.at.size < 30 else "lines", **common,
                )  # fmt: skip
                named.add(title)
                for trace in (band, line):
                    figure.add_trace(trace, 1 + place // 2, 1 + place % 2)
                    shown.append(choice)
    for place, panel in enumerate(panels[None]):
        row, column = 1 + place // 2, 1 + place % 2
        figure.update_xaxes(type="log", title=panel.across, exponentformat="power", row=row, col=column)
        figure.update_yaxes(title=panel.up, range=panel.limits, row=row, col=column)
        figure.add_hline(panel.best, line={"dash": "dot", "color": "gray", "width": 1}, row=row, col=column)
    buttons = [
        {
            "label": "best of each method" if choice is None else f"α = {lrs[choice]:g}",
            "method": "restyle",
            "args": [{"visible": [own == choice for own in shown]}],
        }
        for choice in choices
    ]
    figure.update_layout(
        template="plotly_white",
        title={"text": f"{_headline(records)}<br><sup>Menu: step size. Legend: click to hide a method.</sup>"},
        updatemenus=[{"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.12, "yanchor": "top"}],
        legend={"orientation": "h", "y": -0.1},
        margin={"t": 120},
        hovermode="closest",
    )
    page = figure.to_html(include_plotlyjs=True, full_html=True, default_height="900px", config={"displaylogo": False})
    page = page.replace("<head>", '<head><title>Figure 1</title><meta name="viewport" content="width=1000">', 1)
    return write_whole(path, lambda new: new.write_text(page, encoding="utf-8"))


def _panels(records: list[Record], rate: int | None) -> list[_Panel]:
    """The paper's three panels, and a fourth: where every step size ends. ``rate`` None is the best of each method."""
    regrets = {setting: _curves(records, setting, "regret", rate) for setting in ("stochastic", "online")}
    walked, ended = _curves(records, "stochastic", "x", rate), _ends(records)
    return [
        _Panel(
            "Average regret, stochastic", "step t", "R(t)/t", 0, _limits(regrets["stochastic"]), regrets["stochastic"]
        ),
        _Panel("Iterate, stochastic: −1 is optimal", "step t", "x_t", -1, (-1.05, 1.05), walked),
        _Panel("Average regret, online", "step t", "R(t)/t", 0, _limits(regrets["online"]), regrets["online"]),
        _Panel("Last iterate by step size, stochastic", "step size α", "x_T", -1, (-1.05, 1.05), ended),
    ]


def _curves(records: list[Record], setting: str, quantity: str, rate: int | None) -> list[_Curve]:
    curves = []
    for name, same in _by_method(records, setting).items():
        k = best_rate(same) if rate is None else rate
        values = np.array([getattr(record.walk, quantity)[k] for record in same])
        shown = slice(values.shape[1] // 5 if quantity == "regret" else 0, None)
        curves.append(_curve(name, same[0].walk.t[shown], values[:, shown]))
    return curves


def _ends(records: list[Record]) -> list[_Curve]:
    """The last x of every step size."""
    return [
        _curve(name, np.array(same[0].task.lrs), np.array([record.walk.x[:, -1] for record in same]))
        for name, same in _by_method(records, "stochastic").items()
    ]


def _curve(name: str, at: NDArray[Any], values: NDArray[Any]) -> _Curve:
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    return _Curve(name, at, median, low, high)


def _by_method(records: list[Record], setting: str) -> dict[str, list[Record]]:
    """The records of a setting, by method, in the order of the table."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: list(METHODS).index(r.method)):
        if record.task.setting == setting:
            groups.setdefault(record.method, []).append(record)
    return groups


def _limits(curves: list[_Curve]) -> tuple[float, float]:
    """What the last 60 % of log t needs: the first steps' averages are hundreds of times larger, and say nothing."""
    late = [values[2 * values.size // 5 :] for curve in curves for values in (curve.low, curve.high)]
    if not late:
        return -1.0, 1.0
    low, high = min(0.0, *map(np.min, late)), max(0.0, *map(np.max, late))
    room = 0.05 * (high - low) or 1.0
    return float(low - room), float(high + room)


def _colour(name: str) -> str:
    if name in _COLOURS:
        return _COLOURS[name]
    return _OTHERS[[row for row in METHODS if row not in _COLOURS].index(name) % len(_OTHERS)]


def _headline(records: list[Record]) -> str:
    seeds = len({record.task.seed for record in records if record.task.setting == "stochastic"})
    return f"Synthetic problem, {records[0].task.T:,} steps; median and quartiles of {seeds} seeds"
