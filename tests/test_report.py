"""The report and its figures: what they say is what the records say, whatever the records hold."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from made_up import HOSTILE, LRS, NAMES, made_up

from wagmf.arguments import Refused
from wagmf.lab import plots, stats
from wagmf.lab.answers import answer, overall
from wagmf.lab.figures import best, improvement, matrix, sensitivity, training
from wagmf.lab.looks import Panel, label, styles
from wagmf.lab.report import pictures, report
from wagmf.lab.traces import dots_figure, panel_figure
from wagmf.methods import METHODS, PAPER_METHODS

PLOTLY = plots.plotly_js()
FEW = {"names": NAMES[:1], "methods": ("adam", "wada", "torch.optim.SGD"), "lrs": LRS[::2], "epochs": 6}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """The page of the records that FEW describes, as it was written."""
    return report(made_up(**FEW), tmp_path_factory.mktemp("few") / "report.html").read_text()


@pytest.fixture
def drawn(monkeypatch):
    """Has pictures named, not drawn, which takes its time."""
    names = []
    for draw in ("panel_picture", "matrix_picture"):
        monkeypatch.setattr(plots, draw, lambda figures, path, **words: names.append(path.name) or path)
    return names


def page_of(records, tmp_path, **options):
    """The page without plotly.js, which makes up most of it."""
    return report(records, tmp_path / "report.html", **options).read_text().replace(PLOTLY, "")


class Reader(HTMLParser):
    """Collects what a browser would see: elements, their attributes, and text outside scripts and styles."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts, self.data, self.inside = [], [], [], {}, None
        self.feed(page)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag in ("script", "style"):
            self.inside = dict(attrs).get("id", tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.data[self.inside] = self.data.get(self.inside, "") + data
        else:
            self.texts.append(data)


def of_one(curves, **rows):
    """A curves frame of one experiment: a list of losses for every (method, lr, seed)."""
    return pd.DataFrame(
        [
            ("e", method, lr, seed, epoch, value, 1 - value, value, 1 - value)
            for (method, lr, seed), values in curves.items()
            for epoch, value in enumerate(values, start=1)
        ],
        columns=["experiment", "method", "lr", "seed", "epoch", *stats.METRICS],
    ).assign(**rows)


def answered(records, metric="train_loss", name=None):
    """The answer of one experiment, by way of the statistics."""
    curves = records.curves
    rates, tests = stats.best_rates(curves), stats.significance(curves, metric)
    name = name or curves["experiment"].iloc[0]
    ranks, tests_here, rates_here = (t[t["experiment"] == name] for t in (stats.ranking(curves, metric), tests, rates))
    return answer(ranks, tests_here, rates_here, metric, family=len(tests))


# ------------------------------------------------------------------ figures


def test_lines_are_means_with_students_interval():
    curves = of_one({("wada", 0.1, s): [1.0 + s, 0.5 * (1 + s)] for s in range(3)} | {("wada", 1.0, 0): [9.0, 9.0]})
    (line,) = training(curves, "train_loss", {"wada": 0.1}).lines
    np.testing.assert_allclose(line.y, [2.0, 1.0])
    half = 4.302652729911275 * np.array([1.0, 0.5]) / np.sqrt(3)  # t of 2 degrees of freedom, from a table
    panel = training(curves, "test_accuracy", {"wada": 0.1})
    assert panel.percent
    assert not panel.log_y
    np.testing.assert_allclose(panel.lines[0].y, [-1.0, 0.0])
    wide = of_one({("wada", 0.1, s): [10.0 ** -(k + s / 1000) for k in range(5)] for s in range(3)})
    (line,) = training(wide, "train_loss", {"wada": 0.1}).lines
    spread = np.std([10.0 ** -(s / 1000) for s in range(3)], ddof=1)
    half = 4.302652729911275 * spread / np.sqrt(3)
    np.testing.assert_allclose(line.high[1] - line.y[1], half / 10, rtol=1e-9)
    np.testing.assert_allclose(line.y[1] - line.low[1], half / 10, rtol=1e-9)


def test_intervals_end_where_the_panel_does():
    curves = of_one({("wada", 0.1, s): [1.0, [0.001, 0.2, 0.9][s]] for s in range(3)})
    panel = training(curves, "train_loss", {"wada": 0.1})
    (line,) = panel.lines
    assert panel.log_y
    assert line.low.min() == panel.limits[0] > 0


def test_a_line_ends_where_its_first_seed_diverges():
    nan = np.nan
    curves = of_one({("adam", 0.1, 0): [3.0, 2.0, 1.0], ("adam", 0.1, 1): [3.0, nan, nan], ("wada", 0.1, 0): [nan] * 3})
    panel = training(curves, "train_loss", {"adam": 0.1, "wada": 0.1})
    by_method = {line.method: line for line in panel.lines}
    assert by_method["adam"].y.tolist() == [3.0]
    assert by_method["wada"].y.size == 0
    texts = {mark.method: (mark.x, mark.text) for mark in panel.marks}
    assert texts["adam"] == (1.0, "1 of 2 seeds diverged, the first in epoch 2")
    assert texts["wada"] == (1.0, "1 of 1 seeds diverged, the first in epoch 1")
    assert all(panel.limits[0] <= mark.y <= panel.limits[1] for mark in panel.marks)


def test_sensitivity_marks_what_was_chosen_and_what_diverged():
    curves = of_one(
        {("wada", 0.1, s): [2.0, 0.5] for s in range(2)}
        | {("wada", 1.0, 0): [2.0, 0.1], ("wada", 1.0, 1): [2.0, np.nan], ("adam", 1.0, 0): [np.nan, np.nan]}
    )
    panel = sensitivity(curves, "train_loss", {"wada": 0.1, "adam": 1.0})
    wada = next(line for line in panel.lines if line.method == "wada")
    assert (wada.x.tolist(), wada.y.tolist()) == ([0.1], [0.5]), "no mean over survivors"
    marks = {(mark.method, mark.kind): mark for mark in panel.marks}
    assert marks["wada", "chosen"].x == 0.1
    assert marks["wada", "diverged"].text == "1 of 2 seeds diverged at 1"
    levels = {marks[name, "diverged"].y for name in ("wada", "adam")}
    assert len(levels) == 2, "crosses of two methods do not hide each other"
    assert all(panel.ceiling < level < panel.limits[1] for level in levels)


def test_the_matrix_reads_by_rows():
    table = pd.DataFrame(
        {"a": ["wada", "wada"], "b": ["adam", "ogd"], "hedges_g": [-2.0, 1.0], "paired_holm": [0.01, np.nan],
         "better": ["a", ""]}
    )  # fmt: skip
    found = matrix(table, "train_loss")
    assert found.methods == ("wada", "adam", "ogd")
    assert (found.cells[0][1].effect, found.cells[0][1].shown) == (2.0, 1), "less loss is better"
    assert (found.cells[1][0].effect, found.cells[1][0].shown) == (-2.0, -1)
    assert found.cells[0][2] is None
    assert matrix(table, "test_accuracy").cells[0][1].effect == -2.0


def test_methods_are_ranked_by_divergence_first():
    ranks = pd.DataFrame({"method": ["a", "b", "c"], "diverged": [1, 0, 0], "mean": [0.1, 0.3, 0.2]})
    assert best(ranks, "train_loss") == ["c", "b", "a"]
    assert best(ranks, "test_accuracy") == ["b", "c", "a"]
    chances = pd.DataFrame({"method": ["a", "b", "c"], "improves": [0.1, np.nan, 0.9], "improves_low": 0.0})
    assert improvement(chances.assign(improves_high=1.0)).methods == ("c", "a")


def test_every_method_looks_like_itself_everywhere():
    alone, among = styles(["nadam"])["nadam"], styles([*METHODS, "torch.optim.SGD", "mine"])
    assert among["nadam"] == alone
    assert list(among) == [*METHODS, "mine", "torch.optim.SGD"]
    assert len({(look.colour, look.dash) for look in among.values()}) == len(among)
    assert len({look.marker for look in styles(PAPER_METHODS).values()}) == len(PAPER_METHODS)


def luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_lines_stand_out_from_both_grounds():
    for look in styles(METHODS).values():
        assert 1.05 / (luminance(look.colour) + 0.05) > 2, look
        assert (luminance(look.dark) + 0.05) / (luminance("#15181c") + 0.05) > 4, look


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [
        ((0.03, 2.0), [0.03, 0.1, 0.3, 1]),
        ((1e-7, 1.0), [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1]),
        ((0.5, 0.62), [0.5, 0.52, 0.54, 0.56, 0.58, 0.6, 0.62]),
        ((0.175, 0.38), [0.2, 0.25, 0.3, 0.35]),
        ((0.10001, 0.10002), [0.10001, 0.10002]),
    ],
)
def test_logarithmic_axes_have_round_ticks(limits, ticks):
    np.testing.assert_allclose(Panel("", "", "", (), (), limits, log_y=True).ticks, ticks)


def test_plotly_gets_no_tags_no_templates_and_no_nan():
    name = "%{x}<b>&lt;" + "y" * 60
    curves = of_one({(name, 0.1, 0): [1.0, np.nan], ("wada", 0.1, 0): [1.0, 0.5]})
    figure = panel_figure([training(curves, "train_loss", {name: 0.1, "wada": 0.1})], ["wada", name])
    text = json.dumps(figure, allow_nan=False)
    assert "<b>" not in text
    assert all("%{x}" not in trace.get("hovertemplate", "") for trace in figure["views"][0]["data"])
    names = {trace.get("name") for trace in figure["views"][0]["data"]}
    assert "%{x}&lt;b&gt;&amp;lt;" + "y" * 12 + "…" in names
    ranks = pd.DataFrame({"method": [name], "improves": [0.5], "improves_low": [0.4], "improves_high": [np.nan]})
    dots = dots_figure(improvement(ranks), [name])
    json.dumps(dots, allow_nan=False)
    assert "<b>" not in str(dots)


# ------------------------------------------------------------------ answers


def test_a_clear_winner_is_named_with_the_evidence():
    records = made_up(**{**FEW, "seeds": 12, "epochs": 30})
    found = answered(records)
    assert found.winner == "adam"
    assert found.verdict == "Adam is better than every other method."
    row = stats.significance(records.curves).set_index(["a", "b"]).loc[("wada", "adam")]
    text = found.evidence.replace("\N{NO-BREAK SPACE}", " ")
    assert "Adam’s final training loss is the lowest" in text
    assert "% below WADA’s" in text
    assert "n = 12 paired seeds" in text
    assert f"Hedges’ g = {row['hedges_g']:#.4g}" in text
    assert f"difference {-row['high']:+#.3g} to {-row['low']:+#.3g}".replace("-", "−") in text
    assert "paired t-test p < 0.001 after Holm’s adjustment (permutation test p = 0.001)" in text
    assert "go unseen" not in text


def test_too_few_seeds_are_said_to_be():
    found = answered(made_up(**FEW))
    assert found.winner == ""
    assert found.verdict == "No method is shown to be best; Adam is shown to be better than torch.optim.SGD."
    assert found.alarms[0] == (
        "What is shown rests on differences between runs being about normal: the permutation test, which needs no such "
        "assumption, cannot have a p below 0.1875 with 5 seeds and 3 comparisons. 7 seeds would be enough."
    )
    assert "a true difference of less than" in found.evidence
    assert not any("cannot have" in alarm for alarm in answered(made_up(**{**FEW, "seeds": 7})).alarms)


def test_equal_methods_are_not_told_apart():
    curves = of_one({(name, 0.1, s): [1.0 + s / 10] for name in ("adam", "wada") for s in range(8)})
    found = answered(made_up_of(curves))
    assert found.verdict == "No method is shown to be better."
    assert "the same as" in found.evidence


def test_better_than_some_is_not_best():
    curves = of_one(
        {("adam", 0.1, s): [1.0 + s / 100 + (-1) ** s / 10] for s in range(9)}
        | {("wada", 0.1, s): [1.0 + s / 100] for s in range(9)}
        | {("ogd", 0.1, s): [2.0 + s / 90] for s in range(9)}
    )
    found = answered(made_up_of(curves))
    assert found.winner == ""
    assert found.verdict == "No method is shown to be best; WADA is shown to be better than OGD."


def test_alarms_name_edges_and_divergence():
    curves = of_one(
        {("adam", lr, s): [1.0 + lr] for lr in (0.1, 0.2) for s in range(2)}
        | {("wada", lr, s): [1.0 - lr] for lr in (0.1, 0.2) for s in range(2)}
        | {("ogd", 0.1, 0): [np.nan], ("ogd", 0.1, 1): [0.01]}
    )
    found = answered(made_up_of(curves))
    assert found.alarms[1:] == (
        "The best step size of Adam (0.1) is the smallest that was tried: a smaller one may be better.",
        "The best step size of WADA (0.2) is the largest that was tried: a larger one may be better.",
        "The best step size of OGD (0.1) is the only one that was tried.",
        "Seeds diverged even at the best step size: OGD (1 of 2).",
    )
    assert found.evidence.startswith("WADA’s final training loss is the lowest"), "OGD lost a seed, and is last"


def test_the_next_best_may_have_lost_seeds():
    curves = of_one({("adam", 0.1, s): [0.1 if s else np.nan] for s in range(3)}
                    | {("wada", 0.1, s): [0.5] for s in range(3)})  # fmt: skip
    found = answered(made_up_of(curves))
    assert "WADA’s final training loss is 0.5000; Adam, the next best, diverged with 1 of 3 seeds" in found.evidence
    assert found.winner == ""
    assert found.evidence.endswith(")."), "nothing varies: nothing to go unseen"


def test_all_answers_in_a_sentence():
    few = answered(made_up(**FEW))
    sure = answered(made_up(**{**FEW, "seeds": 12, "epochs": 30}))
    assert overall([sure, few, sure]) == "Adam is shown to be best in 2 of 3 experiments; in 1 of 3 no method is."
    assert overall([few, few]) == "In no experiment is a method shown to be best."
    assert overall([few]) == overall([sure]) == ""


# ------------------------------------------------------------------ the page


def made_up_of(curves):
    """Records of these curves."""
    runs = curves.groupby(["experiment", "method", "lr", "seed"], as_index=False).agg(
        diverged=("train_loss", lambda losses: int(losses.isna().argmax()) + 1 if losses.isna().any() else pd.NA)
    )
    more = {"key": "k", "step_ms": 1.0, "way": "one at a time", "dataset": "d", "model": "m", "epochs": 1, "batch": 8}
    records = made_up(names=["e"], methods=["wada"], seeds=1, epochs=1)
    records.curves = curves
    records.runs = runs.assign(**more, loss="clean").astype({"diverged": "Int64"})
    return records


def test_the_same_records_give_the_same_bytes(tmp_path, few):
    assert report(made_up(**FEW), tmp_path / "again.html").read_text() == few


def test_the_page_names_every_experiment_method_and_section(tmp_path):
    records = made_up(names=NAMES[:2], seeds=2, epochs=5, lrs=LRS[:2])
    reader = Reader(page_of(records, tmp_path, title="Six & two", rerun="wagmf compare <mine>.toml"))
    for name in (*NAMES[:2], *map(label, PAPER_METHODS), "Six & two", "wagmf compare <mine>.toml", "made up", "2.11.0"):
        assert name in reader.text
    assert "running, the mean over the epoch’s batches" in reader.text
    assert "For contrast only; these are no evidence." in reader.text
    assert "2 experiments × 6 methods × 2 step sizes × 2 seeds; 48 runs, none diverged; device made up" in reader.text
    assert {key for key in reader.data if key.startswith("e1")} == {
        "e1-train_loss-data", "e1-test_accuracy-data", "e1-sensitivity-data", "e1-improvement-data"
    }  # fmt: skip
    assert reader.tags.count("table") == reader.tags.count("caption")
    assert reader.tags.count("th") == sum(name == "scope" for tag, name, _ in reader.attributes if tag == "th")


def test_the_tables_say_what_the_statistics_say(few):
    records, reader = made_up(**FEW), Reader(few.replace(PLOTLY, ""))
    rank = stats.ranking(records.curves).iloc[0]
    test = stats.significance(records.curves).iloc[0]
    paper = stats.paper_significance(records.curves).iloc[0]
    for value in (rank["mean"], rank["low"], rank["high"], test["mean_a"], abs(test["hedges_g"])):
        assert f"{value:#.4g}" in reader.text
    assert f"{rank['improves']:.2f}" in reader.text
    assert f"{paper['p']:.2g}" in reader.text
    ms = records.runs.groupby("method")["step_ms"].median()
    assert f"{ms['adam']:.3g}" in reader.text
    assert f"{ms['wada']:.3g}" in reader.text


def test_every_step_size_can_be_looked_at(few):
    records, reader = made_up(**FEW), Reader(few.replace(PLOTLY, ""))
    figure = json.loads(reader.data["e1-train_loss-data"])
    assert len(figure["views"]) == 1 + len(FEW["lrs"])
    wanted = training(records.curves, "train_loss", dict.fromkeys(FEW["methods"], FEW["lrs"][1]))
    drawn = {trace["name"]: trace["y"] for trace in figure["views"][2]["data"] if trace["meta"]["role"] == "line"}
    assert drawn.keys() == {label(line.method) for line in wanted.lines}
    for line in wanted.lines:
        np.testing.assert_allclose(drawn[label(line.method)], line.y, rtol=1e-5)


def test_diverged_runs_are_listed(tmp_path):
    records = made_up(names=NAMES[:1], seeds=3, epochs=6)
    lost = records.runs.dropna(subset="diverged")
    assert len(lost) > 3
    text = Reader(page_of(records, tmp_path)).text
    for row in lost.to_dict("records"):
        assert f"{row['seed']} (epoch {row['diverged']})" in text


def test_hostile_names_stay_names(tmp_path, few):
    records = made_up(names=HOSTILE, methods=HOSTILE, lrs=LRS[:2], seeds=2, epochs=3)
    records.environment = {name: name for name in HOSTILE}
    reader = Reader(page_of(records, tmp_path, title=HOSTILE[1], rerun=HOSTILE[1]))
    assert set(reader.tags) <= set(Reader(few.replace(PLOTLY, "")).tags) | {"pre"}
    assert not any(name.startswith("on") for _, name, _ in reader.attributes)
    assert reader.tags.count("script") == sum(key.endswith("-data") for key in reader.data) + 3
    for name in HOSTILE:
        assert re.sub(r"\s+", " ", name) in reader.text
    for key, text in reader.data.items():
        if key.endswith("-data"):
            json.loads(text)
            assert not set("<>&") & set(text)


def test_nothing_is_asked_of_the_network(few):
    page = few.replace(PLOTLY, "")
    reader = Reader(page)
    wanted = {value for _, name, value in reader.attributes if name in ("src", "href", "action", "srcset", "data")}
    assert all(value.startswith("#") for value in wanted)
    assert not re.search(r"@import|url\(|https?://|//cdn", page)
    (policy,) = [value for tag, name, value in reader.attributes if tag == "meta" and "default-src" in (value or "")]
    assert policy.startswith("default-src 'none';")
    own = page[page.rindex('<script>"use strict"') + len("<script>") : page.rindex("</script>")]
    for script in (PLOTLY, own):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


# ------------------------------------------------------------------ what may be missing


def test_a_metric_that_was_not_measured(tmp_path, drawn):
    records = made_up(**FEW)
    records.curves["test_accuracy"] = np.nan
    reader = Reader(page_of(records, tmp_path))
    assert "The test accuracy was not measured: there is nothing to compare." in reader.text
    assert "e1-test_accuracy-data" not in reader.data
    assert "e1-train_loss-data" in reader.data
    by_accuracy = Reader(page_of(records, tmp_path, criterion="test_accuracy"))
    assert "The test accuracy was not measured" in by_accuracy.text
    assert len(pictures(records, tmp_path, formats=["svg"])) == len(drawn) == 3


def test_one_seed_shows_nothing(tmp_path):
    reader = Reader(page_of(made_up(**FEW, seeds=1), tmp_path))
    assert "One seed only: nothing can be shown." in reader.text
    assert "with one seed each, no test can say whether that is chance." in reader.text
    assert "No method is shown to be better." in reader.text
    figure = json.loads(reader.data["e1-train_loss-data"])
    assert not any(trace["meta"]["role"] == "band" for trace in figure["views"][0]["data"])


def test_one_step_size_leaves_nothing_to_choose(tmp_path):
    """A figure of single points, and a menu of one, would say nothing."""
    reader = Reader(page_of(made_up(**{**FEW, "lrs": LRS[:1]}), tmp_path))
    assert "e1-sensitivity-data" not in reader.data
    assert "select" not in reader.tags
    assert "select" in Reader(page_of(made_up(**{**FEW, "lrs": LRS[:2]}), tmp_path)).tags


def test_one_method_has_nothing_to_be_compared_with(tmp_path, drawn):
    records = made_up(**{**FEW, "methods": ["wada"]})
    reader = Reader(page_of(records, tmp_path))
    assert "Only WADA was run: there is nothing to compare it with." in reader.text
    assert "There was nothing to compare." in reader.text
    assert "e1-improvement-data" not in reader.data
    pictures(records, tmp_path, formats=["svg"])
    assert drawn == ["1-mlp-on-digits-curves.svg", "1-mlp-on-digits-sensitivity.svg"]


def test_all_runs_diverged(tmp_path):
    records = made_up(**FEW)
    records.curves[list(stats.METRICS)] = np.nan
    records.runs["diverged"] = 1
    text = Reader(page_of(records, tmp_path)).text
    assert "Every run diverged, even at the best step sizes: there is nothing to compare." in text
    assert pictures(records, tmp_path / "pictures", formats=["svg"]) == []


def test_one_method_is_left(tmp_path):
    curves = of_one(
        {("adam", 0.1, s): [0.4, np.nan] for s in range(3)} | {("wada", 0.1, s): [1.0, 0.5] for s in range(3)}
    )
    text = Reader(page_of(made_up_of(curves), tmp_path)).text
    assert "Every method but WADA diverged with every seed." in text
    assert "Caution: Seeds diverged even at the best step size: Adam (3 of 3)." in text


def test_experiments_may_have_different_methods_and_step_sizes(tmp_path):
    first, second = made_up(**FEW), made_up(names=["another"], methods=["wada", "ogd"], lrs=(0.5,), seeds=2, epochs=3)
    first.curves = pd.concat([second.curves, first.curves], ignore_index=True)
    first.runs = pd.concat([second.runs, first.runs], ignore_index=True)
    reader = Reader(page_of(first, tmp_path))
    assert "another" in reader.text
    assert len(json.loads(reader.data["e1-train_loss-data"])["views"]) == 1  # one step size, the best
    assert len(json.loads(reader.data["e2-train_loss-data"])["views"]) == 4


def test_by_test_accuracy(tmp_path):
    records = made_up(**FEW)
    reader = Reader(page_of(records, tmp_path, criterion="test_accuracy"))
    assert "Compared by the test accuracy of the last epoch" in reader.text
    assert "final test accuracy is the highest" in reader.text.replace("\N{NO-BREAK SPACE}", " ")
    figure = json.loads(reader.data["e1-sensitivity-data"])
    assert figure["views"][0]["yaxis"]["title"]["text"] == "final test accuracy"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda to: report(made_up(**FEW), to / "r.html", criterion="test_acuracy"), "did you mean 'test_accuracy'"),
        (lambda to: pictures(made_up(**FEW), to, formats=["jpg"]), "choose from png, svg, pdf"),
        (lambda to: pictures(made_up(**FEW), to, criterion="loss"), "choose from train_loss, test_accuracy"),
        (lambda to: report(nothing(), to / "r.html"), "at least one finished run"),
        (lambda to: pictures(nothing(), to), "at least one finished run"),
    ],
)
def test_what_cannot_be_reported_is_refused(tmp_path, call, message):
    with pytest.raises(Refused, match=message):
        call(tmp_path)
    assert list(tmp_path.iterdir()) == []


def nothing():
    records = made_up(**FEW)
    records.curves, records.runs = records.curves[:0], records.runs[:0]
    return records


# ------------------------------------------------------------------ pictures


def test_every_figure_has_its_pictures(tmp_path, drawn):
    found = pictures(made_up(**{**FEW, "names": (NAMES[0], *HOSTILE)}), tmp_path / "new" / "folder")
    assert [path.name for path in found] == drawn
    kinds = [f"{kind}.{ending}" for ending in ("png", "svg") for kind in ("curves", "sensitivity", "significance")]
    assert [name for name in drawn if name.startswith("4-")] == [f"4-mlp-on-digits-{kind}" for kind in kinds]
    assert len(set(drawn)) == 24
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in drawn)


def test_pictures_are_always_the_same(tmp_path):
    records = made_up(names=["$x^2$"], methods=("adam", "$z$"), lrs=LRS[::2], seeds=2, epochs=3)
    curves, *others = pictures(records, tmp_path, formats=["svg"])
    assert all(path.stat().st_size > 1000 for path in others)
    text = curves.read_text()
    curves.unlink()
    panels = [training(records.curves, metric, best_lrs(records)) for metric in ("train_loss", "test_accuracy")]
    title = "$x^2$: mean over seeds with 95 % bands, each method at its best step size"
    again = plots.panel_picture(panels, tmp_path / "again.svg", title=title, methods=["adam", "$z$"])
    assert again.read_text() == text
    assert 'id="DejaVuSans-24"' in text, "the dollars are drawn: no mathematics is meant"
    assert "Oblique" not in text
    for look in styles(["adam", "$z$"]).values():
        assert look.colour.lower() in text
    png = plots.panel_picture(panels[:1], tmp_path / "loss.png", title="loss", methods=["adam", "$z$"])
    assert png.read_bytes().startswith(b"\x89PNG")


def best_lrs(records):
    return stats.best_rates(records.curves).set_index("method")["lr"].to_dict()
