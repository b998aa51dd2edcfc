"""Figures, as functions of records: nothing here trains or simulates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wagmf.lab.files import write_whole
from wagmf.lab.looks import Cell, Leads, Line, Matrix, Panel, Shown, Style, label, styles
from wagmf.lab.walks import Record, best_rate
from wagmf.methods import METHODS, method

__all__ = [
    "figure1_page",
    "figure1_picture",
    "figure1_shown",
    "leads_pictures",
    "matrix_picture",
    "panel_picture",
    "panel_pictures",
    "plotly_js",
]

_MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "star": "*",
    "pentagon": "p",
}  # fmt: skip
# By what is shown: the colour, and the words.
_LEADS = {1: ("#0072B2", "shown to be ahead"), -1: ("#D55E00", "shown to be behind"), 0: ("0.45", "neither is shown")}


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
            look, title = _look(curve.method), method(curve.method).title
            drawn = {"color": look.colour, "linestyle": _dashes(look), "label": title, "ms": 4}
            axis.plot(curve.at, curve.median, marker=_MARKERS[look.marker] if curve.at.size < 30 else None, **drawn)
            axis.fill_between(curve.at, curve.low, curve.high, color=look.colour, alpha=0.15, linewidth=0)
        axis.axhline(panel.best, color="0.5", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", title=panel.title, xlabel=panel.across, ylabel=panel.up, ylim=panel.limits)
        axis.grid(alpha=0.25)
    legend = {
        label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=6, frameon=False, handlelength=3.6)
    figure.suptitle(f"{_headline(records)}; each method at its best step size", fontsize=10)
    return _save(figure, path)


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
                look, title = _look(curve.method), method(curve.method).title
                common = {"legendgroup": title, "visible": choice is None, "name": title}
                band = Scatter(
                    x=np.r_[curve.at, curve.at[::-1]], y=np.r_[curve.low, curve.high[::-1]], fill="toself",
                    mode="none", fillcolor=look.colour, opacity=0.15, showlegend=False, hoverinfo="skip", **common,
                )  # fmt: skip
                line = Scatter(
                    x=curve.at, y=curve.median, showlegend=title not in named,
                    mode="lines+markers" if curve.at.size < 30 else "lines", marker={"symbol": look.marker, "size": 7},
                    line={"color": look.colour, "dash": ",".join(f"{d}px" for d in look.dash) or "solid"}, **common,
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


def figure1_shown(records: list[Record]) -> Shown:
    """Figure 1 for a report: every step size is a view, and the first one has each method at its best.

    >>> from wagmf.online import Task, simulate
    >>> task = Task(method("wada").rule, 1000, (0.1, 1.0))
    >>> figure1_shown([Record("wada", task, simulate(**vars(task)))]).choices
    ('best of each method', '0.1', '1')
    """
    lrs = records[0].task.lrs
    choices: list[int | None] = [None, *range(len(lrs))]
    views = [[_shown(panel) for panel in _panels(records, choice)] for choice in choices]
    words = f"{_headline(records)}. Every step size ends where the last panel says."
    named = ("best of each method", *(f"{lr:g}" for lr in lrs))
    return Shown("Figure 1: the synthetic problem", words, named, tuple(zip(*views, strict=True)))


def _shown(panel: _Panel) -> Panel:
    lines = tuple(Line(curve.method, curve.at, curve.median, curve.low, curve.high) for curve in panel.curves)
    return Panel(panel.title, panel.across, panel.up, lines, (), panel.limits, log_x=True)


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


def _look(name: str) -> Style:
    return styles([name])[name]


def _headline(records: list[Record]) -> str:
    seeds = len({record.task.seed for record in records if record.task.setting == "stochastic"})
    return f"Synthetic problem, {records[0].task.T:,} steps; median and quartiles of {seeds} seeds"


def plotly_js() -> str:
    """The text of plotly.js, which the report carries in itself.

    >>> "Plotly" in plotly_js()
    True
    """
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


# ------------------------------------------------------------------ a comparison of methods, as pictures


def panel_picture(
    panels: Sequence[Panel], path: Path, *, title: str, methods: Sequence[str], columns: int | None = None
) -> Path:
    """Panels side by side, or so many in a row, as a picture (the file's ending says which kind), with one legend.

    >>> import tempfile
    >>> from wagmf.lab.looks import Line
    >>> line = Line("wada", np.array([1, 2]), np.array([0.5, 0.25]))
    >>> panel = Panel("Loss", "epoch", "loss", (line,), ())
    >>> panel_picture([panel], Path(tempfile.mkdtemp()) / "loss.svg", title="Made up", methods=["wada"]).name
    'loss.svg'
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(columns or len(panels), len(panels))
    rows = -(-len(panels) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.1)  # inches: a panel's words keep clear of the panel before it
    figure, looks = Figure(figsize=(5.2 * columns, 3.8 * rows + 0.6), layout=layout), styles(methods)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, panel, looks)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    marked = any(panel.few or panel.marks for panel in panels)
    handles = [_handle(look, marked) for look in looks.values()]
    labels = [_literal(label(name)) for name in looks]
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=min(6, 3 * columns),
        frameon=False,
        fontsize=9,
        handlelength=3.6,
    )
    figure.suptitle(_literal(title), fontsize=11)
    return _save(figure, path)


def panel_pictures(
    panels: Sequence[Panel], path: Path, *, title: str, methods: Sequence[str], columns: int | None = None
) -> list[Path]:
    """Panels as :func:`panel_picture` draws them, for a page and for print: PNG and SVG. Of no panels nothing.

    >>> panel_pictures([], Path("loss"), title="Made up", methods=["wada"])
    []
    """
    return [
        panel_picture(panels, path.with_suffix(ending), title=title, methods=methods, columns=columns)
        for ending in (".png", ".svg")
        if panels
    ]


def leads_pictures(sides: Sequence[Leads], path: Path, *, title: str) -> list[Path]:
    """Who is ahead by how much, side by side, as PNG and SVG: what is shown is coloured, what is too small shaded.

    >>> import tempfile
    >>> side = Leads("points", ("here",), np.array([0.9]), np.array([0.8]), np.array([1.0]), (1,), 0.5)
    >>> [made.name for made in leads_pictures([side], Path(tempfile.mkdtemp()) / "leads", title="Made up")]
    ['leads.png', 'leads.svg']
    """
    return [_leads_picture(sides, path.with_suffix(ending), title) for ending in (".png", ".svg")]


def _leads_picture(sides: Sequence[Leads], path: Path, title: str) -> Path:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = max(len(side.names) for side in sides)
    figure = Figure(figsize=(5.6 * len(sides), 1.5 + 0.36 * rows), layout="constrained")
    for axis, side in zip(figure.subplots(1, len(sides), squeeze=False).ravel(), sides, strict=True):
        axis.axvspan(-side.margin, side.margin, color="0.92", linewidth=0)
        axis.axvline(0, color="0.4", linewidth=0.8)
        for place, shown in enumerate(side.shown):
            value, colour = side.values[place], _LEADS[shown][0]
            apart = [[value - side.low[place]], [side.high[place] - value]]
            axis.errorbar(value, place, xerr=apart, fmt="o" if shown else ".", color=colour, capsize=3, linewidth=1.6)
        axis.set(xlabel=_literal(side.across), ylim=(rows - 0.5, -0.5))
        axis.set_yticks(range(len(side.names)), [_literal(name) for name in side.names], fontsize=9)
        axis.grid(axis="x", alpha=0.25)
    handles = [*(_leads_handle(colour, kind) for kind, (colour, _) in _LEADS.items()), Patch(color="0.92")]
    words = [*(text for _, text in _LEADS.values()), "too little to matter"]
    figure.legend(handles, words, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(_literal(title), fontsize=11)
    return _save(figure, path)


def _leads_handle(colour: str, kind: int) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker="o" if kind else ".", linewidth=1.6)


def matrix_picture(matrices: Sequence[Matrix], path: Path, *, title: str) -> Path:
    """Matrices of effect sizes side by side as a picture; ``*`` marks what is shown.

    >>> import tempfile
    >>> matrix = Matrix("Loss", ("adam", "wada"), ((None, Cell(-2.0, 0.01, -1)), (Cell(2.0, 0.01, 1), None)))
    >>> matrix_picture([matrix], Path(tempfile.mkdtemp()) / "matrix.svg", title="Made up").name
    'matrix.svg'
    """
    from matplotlib.figure import Figure

    size = max(len(matrix.methods) for matrix in matrices)
    figure = Figure(figsize=((1.6 + 0.85 * size) * len(matrices), 1.6 + 0.62 * size), layout="constrained")
    axes = figure.subplots(1, len(matrices), squeeze=False).ravel()
    for axis, matrix in zip(axes, matrices, strict=True):
        names = [_literal(label(name)) for name in matrix.methods]
        effects = np.array([[cell.effect if cell else np.nan for cell in row] for row in matrix.cells])
        axis.imshow(np.clip(effects, -3, 3), cmap="RdBu", vmin=-6, vmax=6, aspect="auto")
        for i, row in enumerate(matrix.cells):
            for j, cell in enumerate(row):
                text = _cell_text(cell) if cell else ("" if i == j else "–")
                weight = "bold" if cell and cell.shown else "normal"
                axis.text(j, i, text, ha="center", va="center", fontsize=8, weight=weight)
        axis.set_xticks(range(len(names)), names, rotation=30, ha="left", fontsize=9)
        axis.set_yticks(range(len(names)), names, fontsize=9)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_title(matrix.title, fontsize=10)
    note = "Hedges' g of the row's method against the column's (+: the row did better) and Holm-adjusted p; *: shown"
    figure.suptitle(_literal(title), fontsize=11)
    figure.supxlabel(note, fontsize=8)
    return _save(figure, path)


def _draw(axis: Any, panel: Panel, looks: Mapping[str, Style]) -> None:
    for line in panel.lines:
        look = looks[line.method]
        marker = _MARKERS[look.marker] if panel.few else None
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=look.colour, alpha=0.14, linewidth=0)
        axis.plot(line.x, line.y, color=look.colour, linestyle=_dashes(look), linewidth=1.5, marker=marker, ms=4)
    for mark in panel.marks:
        look = looks[mark.method]
        chosen = {"marker": "o", "ms": 10, "mfc": "none"}  # a ring, whatever the marker inside
        kind = chosen if mark.kind == "chosen" else {"marker": "x", "ms": 6, "mew": 1.8}
        axis.plot([mark.x], [mark.y], color=look.colour, linestyle="none", **kind)
    axis.set(xlabel=panel.across, ylabel=panel.up, ylim=panel.limits)
    axis.set_title(panel.title, fontsize=10)
    axis.set_xscale("log" if panel.log_x else "linear")
    axis.set_yscale("log" if panel.log_y else "linear")
    if panel.log_y:
        axis.set_yticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
        axis.set_yticks([], minor=True)
    if panel.log_x:
        axis.set_xticks(panel.across_ticks, [f"{rate:g}" for rate in panel.across_ticks])
        axis.set_xticks([], minor=True)
    if panel.ceiling is not None:
        axis.axhline(panel.ceiling, color="0.4", linewidth=0.8, linestyle=":")
        where = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
        axis.annotate("diverged", (0.01, panel.ceiling), fontsize=8, color="0.3", **where)
    if not panel.log_x:
        axis.xaxis.get_major_locator().set_params(integer=True)
    if panel.percent:
        axis.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    if panel.zoom is not None:
        _draw_zoomed(axis, panel, looks, panel.zoom)
    axis.grid(alpha=0.25)


def _draw_zoomed(axis: Any, panel: Panel, looks: Mapping[str, Style], start: float) -> None:
    """The ends of the lines once more, where a panel has room for them: losses fall, accuracies rise."""
    small = axis.inset_axes((0.42, 0.1, 0.55, 0.48) if panel.percent else (0.54, 0.52, 0.44, 0.45))
    for line in panel.lines:
        late, look = line.x >= start, looks[line.method]
        if line.low is not None and line.high is not None:
            small.fill_between(
                line.x[late], line.low[late], line.high[late], color=look.colour, alpha=0.14, linewidth=0
            )
        small.plot(line.x[late], line.y[late], color=look.colour, linestyle=_dashes(look), linewidth=1.2)
    if panel.percent:
        small.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    small.tick_params(labelsize=7)
    small.grid(alpha=0.25)


def _handle(look: Style, marked: bool) -> Any:
    from matplotlib.lines import Line2D

    marker = _MARKERS[look.marker] if marked else None
    return Line2D([], [], color=look.colour, linestyle=_dashes(look), linewidth=1.5, marker=marker, ms=4)


def _dashes(look: Style) -> Any:
    return (0, tuple(0.7 * length for length in look.dash)) if look.dash else "solid"


def _cell_text(cell: Cell) -> str:
    p = "< .001" if cell.p < 0.001 else f"{cell.p:.3f}".lstrip("0")
    return f"{cell.effect:+.2f}{'*' if cell.shown else ''}\np {p}"


def _literal(text: str) -> str:
    """Matplotlib reads mathematics between dollars: none is meant."""
    return text.replace("$", r"\$")


def _save(figure: Any, path: Path) -> Path:
    """Without a date, and with names in SVG that do not change: same records, same bytes."""
    import matplotlib

    metadata = {"Date": None} if path.suffix == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "wagmf"}):
        return write_whole(path, lambda new: figure.savefig(new, dpi=150, metadata=metadata))
