"""The report in a real browser: it draws everything, asks for nothing, and can be used. Needs Chromium."""

import re
import shutil
from contextlib import contextmanager

import pytest
from made_up import HOSTILE, LRS, NAMES, made_up
from playwright.sync_api import sync_playwright

from wagmf.lab.report import report

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next(filter(None, map(shutil.which, names)), None)  # else the one that Playwright keeps, if it does
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """A report of two experiments, with diverged runs."""
    records = made_up(names=NAMES[:2], lrs=LRS[::2], seeds=4, epochs=12)
    assert records.runs["diverged"].notna().any()
    return report(records, tmp_path_factory.mktemp("report") / "report.html", rerun="wagmf compare mine.toml")


@pytest.fixture(scope="module")
def shared(browser, page_file):
    with opened(browser, page_file) as page:
        yield page


@pytest.fixture
def page(shared):
    """The report, opened once and left by every test as it was found: opening it takes seconds."""
    shared.emulate_media(media="screen", color_scheme="light")
    shared.set_viewport_size(WIDE)
    yield shared
    shared.emulate_media(media="screen")
    for button in shared.query_selector_all(".legend button[aria-pressed=false]"):
        button.click()
    for menu in shared.query_selector_all(".choice"):
        menu.select_option("0")
    shared.evaluate("() => { delete document.documentElement.dataset.theme; scrollTo(0, 0); }")
    shared.emulate_media(media="screen", color_scheme="dark")  # so that the page follows the system again
    assert shared.complaints == []


@pytest.fixture(scope="module")
def hostile_file(tmp_path_factory):
    records = made_up(names=HOSTILE, methods=(*HOSTILE, "x" * 300), lrs=LRS[:2], seeds=2, epochs=3)
    return report(records, tmp_path_factory.mktemp("hostile") / "report.html", title=HOSTILE[1], rerun=HOSTILE[1])


@contextmanager
def opened(browser, path, **options):
    """The page at ``path``, offline; ``page.complaints`` collects errors and requests for anything but the page."""
    context = browser.new_context(offline=True, **{"viewport": WIDE, "color_scheme": "light", **options})
    page, own = context.new_page(), path.as_uri()
    page.set_default_timeout(10_000)
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))

    def asked(route):
        if route.request.url.split("#")[0] == own or route.request.url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            page.complaints.append(f"request: {route.request.url}")
            route.abort()

    page.route("**/*", asked)
    page.goto(own)
    try:
        yield page
    finally:
        context.close()


def seen(page, within="body"):
    """Scroll by all figures, as a reader does, and wait until they are drawn."""
    plots = page.locator(f"{within} .plot")
    for k in range(plots.count()):
        plots.nth(k).scroll_into_view_if_needed()
        plots.nth(k).locator(".main-svg").first.wait_for()


def until(page, right):
    """Whether something becomes right, given time."""
    for _ in range(200):
        if right():
            return True
        page.wait_for_timeout(25)
    return False


def undrawn(page):
    """Figures that have not as many traces in their drawing as their data has."""
    return page.evaluate(
        """() => [...document.querySelectorAll('.plot')].filter((plot) => {
             const wanted = JSON.parse(document.getElementById(plot.dataset.source).textContent).views[0].data;
             const drawn = plot.querySelectorAll('.main-svg .trace');
             const inked = [...drawn].filter((trace) => trace.querySelector('path'));
             return !wanted.length || inked.length !== wanted.length;
           }).map((plot) => plot.dataset.source)"""
    )


def scrolled_sideways(page):
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def visible(page, source, method):
    """Whether the lines of the k-th method are shown in a figure."""
    return page.evaluate(
        """([source, method]) => document.querySelector(`[data-source="${source}"]`).data
             .filter((trace) => trace.meta.method === method).map((trace) => trace.visible)""",
        [source, method],
    )


def contrast(page, selector):
    """WCAG's contrast of an element's text with the page's ground."""
    found = page.evaluate(
        """(selector) => [document.querySelector(selector), document.body].map((element, k) =>
             getComputedStyle(element)[k ? 'backgroundColor' : 'color'])""",
        selector,
    )
    one, two = sorted(luminance(*map(int, re.findall(r"\d+", colour)[:3])) for colour in found)
    return (two + 0.05) / (one + 0.05)


def luminance(*rgb):
    parts = [part / 255 for part in rgb]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


# ------------------------------------------------------------------ it draws everything and asks for nothing


def test_every_figure_is_drawn_without_a_complaint(browser, page_file):
    with opened(browser, page_file) as page:
        assert page.query_selector(".plot[data-source=e2-improvement-data] .main-svg") is None, "drawn when needed"
        seen(page)
        assert undrawn(page) == []
        assert len(page.query_selector_all(".plot")) == 8
        assert page.complaints == []
        assert not scrolled_sideways(page)
        page.evaluate("document.querySelector('.plot .main-svg .trace').remove()")
        assert undrawn(page) == ["e1-train_loss-data"], "or it would be missed"


@pytest.mark.parametrize(
    "planted",
    [
        "<script>console.error('planted')</script>",
        "<script>nothing_of_that_name()</script>",
        "<img src='https://example.org/planted.png'>",
        "<img src='planted.png'>",
        "<script>fetch('https://example.org/planted.json').catch(() => {})</script>",
        "<style>@import url(https://example.org/planted.css);</style>",
    ],
)
def test_a_complaint_would_be_heard(browser, tmp_path, planted):
    bad = tmp_path / "bad.html"
    bad.write_text(f"<!DOCTYPE html><title>bad</title><body>{planted}")
    with opened(browser, bad) as page:
        assert until(page, lambda: page.complaints)


def test_the_policy_stops_what_gets_in_all_the_same(browser, page_file, tmp_path):
    """If escaping failed one day, no script would run and no request would leave."""
    planted = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'><h1>"
    bad = tmp_path / "bad.html"
    bad.write_text(page_file.read_text().replace("<h1>", planted, 1))
    with opened(browser, bad) as page:
        page.wait_for_timeout(50)
        assert page.evaluate("window.hit") is None
        assert page.complaints
        assert not any(text.startswith("request") for text in page.complaints)


def test_hostile_names_are_shown_and_not_run(browser, hostile_file):
    with opened(browser, hostile_file) as page:
        seen(page)
        assert page.evaluate("window.hit") is None
        assert page.complaints == []
        assert undrawn(page) == []
        assert page.title() == HOSTILE[1]
        shown = page.inner_text("body")
        ticks = page.text_content(".plot[data-source=e1-improvement-data] .yaxislayer-above")
        for name in HOSTILE:
            assert name in shown
            assert name[:20] in ticks
        assert page.query_selector("img, b[onclick]") is None
        assert not scrolled_sideways(page)
        page.set_viewport_size(PHONE)
        assert until(page, lambda: not scrolled_sideways(page))


# ------------------------------------------------------------------ it can be used


def test_the_legend_hides_a_method_in_every_figure_of_its_experiment(page):
    seen(page)
    button = page.locator("#e1 .legend button").nth(1)
    method = int(button.get_attribute("data-method"))
    sources = [f"e1-{key}-data" for key in ("train_loss", "test_accuracy", "sensitivity", "improvement")]
    assert all(all(visible(page, source, method)) for source in sources)
    before = page.locator("#e1 .plot").first.inner_html()
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert until(page, lambda: page.locator("#e1 .plot").first.inner_html() != before)
    seen(page)
    assert until(page, lambda: not any(any(visible(page, source, method)) for source in sources))
    assert all(visible(page, "e1-train_loss-data", method - 1))
    assert all(visible(page, "e2-train_loss-data", method)), "other experiments keep theirs"
    page.locator("#e1 .choice").select_option("1")
    seen(page, "#e1")
    assert not any(visible(page, "e1-train_loss-data", method)), "it stays hidden at another step size"
    button.click()
    assert until(page, lambda: all(visible(page, "e1-train_loss-data", method)))


def test_the_menu_shows_another_step_size(page):
    lines = """(k) => { const plot = document.querySelector('[data-source=e1-train_loss-data]');
               const pick = (data) => data.filter((t) => t.meta.role === 'line').map((t) => [...t.y]);
               const source = JSON.parse(document.getElementById('e1-train_loss-data').textContent);
               return [pick(plot.data), pick(source.views[k].data)]; }"""
    for k in (2, 1):
        page.locator("#e1 .choice").select_option(str(k))
        assert until(page, lambda k=k: len(set(map(str, page.evaluate(lines, k)))) == 1)
    assert page.locator("#e1 .choice option").nth(2).inner_text() == f"{LRS[2]:g}"


def colours(page):
    return page.evaluate(
        """() => [getComputedStyle(document.body).backgroundColor,
                  document.querySelector('.plot .xtick text').style.fill,
                  [...document.querySelectorAll('.plot .js-line')].find(
                    (line) => line.style.strokeWidth === '2px').style.stroke]"""
    )


def test_the_theme_is_the_systems_until_the_button_changes_it(page):
    page.locator("#e1 .plot").first.scroll_into_view_if_needed()
    button, light = page.locator("#theme"), colours(page)
    dark = []
    for scheme, offer in (("light", "Dark theme"), ("dark", "Light theme")):
        page.emulate_media(color_scheme=scheme)
        assert until(page, lambda offer=offer: button.inner_text() == offer)
        dark = colours(page)
        assert contrast(page, "main p") > 7
        for selector in (".soft", "a[href='#e1']", ".alarms strong", "figcaption", ".matrix small"):
            assert contrast(page, selector) > 4.5, selector
    assert all(one != other for one, other in zip(light, dark, strict=True))
    button.click()
    page.locator("#e1 .plot").first.scroll_into_view_if_needed()
    assert until(page, lambda: colours(page) == light), "although the system is dark"
    button.click()
    page.locator("#e1 .plot").first.scroll_into_view_if_needed()
    assert until(page, lambda: colours(page) == dark)
    page.emulate_media(color_scheme="light")
    page.wait_for_timeout(50)
    assert colours(page) == dark, "what was chosen stays"


def test_a_phone_needs_no_scrolling_sideways(page):
    page.set_viewport_size(PHONE)
    seen(page)
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert not scrolled_sideways(page)
    fit = "[...document.querySelectorAll('.plot .main-svg')].every((svg) => svg.clientWidth <= 390)"
    assert until(page, lambda: page.evaluate(fit))
    wide = "[...document.querySelectorAll('.box')].some((box) => box.scrollWidth > box.clientWidth)"
    assert page.evaluate(wide), "wide tables scroll in their box"
    small = "[...document.querySelectorAll('.plot text')].some((t) => parseFloat(getComputedStyle(t).fontSize) < 11)"
    assert not page.evaluate(small)
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<p id=wide style=width:500px>w</p>')"
    )
    assert scrolled_sideways(page), "or it would be seen"
    page.evaluate("document.getElementById('wide').remove()")


def focused(page):
    return page.evaluate(
        """() => { const at = document.activeElement;
                   return at.id || at.className || at.dataset.method || at.getAttribute('href') || at.tagName; }"""
    )


def test_everything_is_reached_by_keyboard(page):
    page.focus(".skip")
    assert page.locator(".skip").bounding_box()["x"] >= 0, "to be seen where it can be used"
    page.keyboard.press("Tab")
    assert focused(page) == "theme"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("Enter")
    reached = []
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.append(focused(page))
    assert {"#e1", "#e2", "choice", "box", "SUMMARY", *map(str, range(6))} <= set(reached)
    page.focus("#e1 .legend button")
    page.keyboard.press("Space")
    assert page.get_attribute("#e1 .legend button", "aria-pressed") == "false"
    assert not page.evaluate("[...document.querySelectorAll('.plot *')].some((inside) => inside.tabIndex >= 0)")
    page.focus(".skip")
    page.keyboard.press("Enter")
    assert focused(page) == "main"


def test_tables_are_sorted_by_their_headings(page):
    table = page.locator("table.sortable").nth(1)
    heading = table.locator("th", has_text="mean a")
    place = heading.evaluate("(th) => th.cellIndex")
    column = f"(t) => [...t.tBodies[0].rows].map((row) => row.cells[{place}].dataset.value)"
    before = table.evaluate(column)
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert table.evaluate(column) == sorted(before, key=float) != before
    heading.locator("button").click()
    assert table.evaluate(column) == sorted(before, key=float, reverse=True)
    name = table.locator("th", has_text="experiment")
    name.locator("button").click()
    assert heading.get_attribute("aria-sort") is None
    texts = table.evaluate("(t) => [...t.tBodies[0].rows].map((row) => row.cells[0].textContent)")
    assert texts == sorted(texts)


def test_on_paper_everything_is_drawn_and_light(page):
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert undrawn(page) == []
    assert contrast(page, "main p") > 7
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = "document.querySelector('.plot .xtick text').style.fill"
    assert page.evaluate(ink) == "rgb(43, 49, 55)"
    page.emulate_media(media="screen", color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.locator("#e1 .plot").first.scroll_into_view_if_needed()
    assert until(page, lambda: page.evaluate(ink) != "rgb(43, 49, 55)")


def test_many_experiments_open_at_once_and_are_drawn_one_by_one(browser, tmp_path):
    records = made_up(
        names=[f"experiment {k}" for k in range(17)], methods=("wada", "adam"), lrs=LRS[:2], seeds=2, epochs=2
    )
    with opened(browser, report(records, tmp_path / "many.html")) as page:
        assert page.locator(".plot.js-plotly-plot").count() <= 4
        page.locator("a[href='#e17']").click()
        page.locator("#e17 .plot .main-svg").first.wait_for()
        assert page.complaints == []
