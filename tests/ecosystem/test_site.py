"""The site: built strictly, every link and picture in it leads somewhere, and nothing is loaded from elsewhere."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from test_documents import REPRODUCTION, ROOT
from test_rooms import ORDER

# One worker builds it, once.
pytestmark = pytest.mark.xdist_group("site")
LOADED = {"img", "script", "link", "iframe", "source"}  # what a browser fetches without being asked to


class Page(HTMLParser):
    """The links of a page with the tags they are in, its anchors, and its text outside of code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.text, self.silent = "", 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        self.links += [(tag, value) for name in ("href", "src") if (value := found.get(name))]
        self.silent += tag in ("code", "script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self.silent else data


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # the theme has news
    return subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300, env=quiet)


def pages_of(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}


def astray(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Every link that leads nowhere, and everything that is loaded from elsewhere."""
    wrong = []
    for path, page in pages.items():
        for tag, link in page.links:
            address, anchor = urldefrag(unquote(link))
            elsewhere = re.match(r"[a-z]+:", address)
            base = site if address.startswith("/") else path.parent
            target = Path(os.path.normpath(base / address.lstrip("/"))) if address else path
            anchors = pages[target].anchors if target in pages else set()
            inside = not elsewhere and target.is_file() and (not anchor or anchor in anchors)
            if not inside and (tag in LOADED or not elsewhere):
                wrong.append(f"{path.relative_to(site)}: <{tag}> {link}")
    return wrong


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return pages_of(site)


def test_every_link_and_picture_leads_somewhere(site, pages):
    assert astray(site, pages) == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def test_a_link_astray_would_be_seen(tmp_path):
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#here">b</a><a href="#here">a</a>')
    text = '<img src="c.png"><a href="a.html#there">a</a><script src="https://example.org/x.js"></script>'
    (tmp_path / "b.html").write_text(text + '<a href="https://example.org">elsewhere</a><a href="/a.html">a</a>')
    wrong = [line.split()[-1] for line in astray(tmp_path, pages_of(tmp_path))]
    assert wrong == ["b.html#here", "c.png", "a.html#there", "https://example.org/x.js"]


def test_no_markdown_is_left_over(pages):
    for path, page in pages.items():
        assert not re.search(r"\]\(|\.\./|```|>>>|:\w+:`|^:::", page.text), path.name


def test_every_page_of_docs_is_there(site):
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= {path.stem for path in site.glob("*.html")}
    assert not list(site.rglob("*.py"))


def test_the_reproduction_has_its_figures_and_verdicts(site, pages):
    (path,) = [path for path in pages if path.parent.name == "reproduction"]
    shown = {link for tag, link in pages[path].links if tag == "img"}
    assert shown >= set(re.findall(r"!\[.*?\]\((.*?)\)", REPRODUCTION.read_text())) > {"figures/figure1.png"}
    text = path.read_text()
    assert [f"<td>C{number}</td>" in text for number in range(1, 14)] == [True] * 13
    assert "<code>experiments/paper</code>" in text


def test_every_module_has_its_page_with_every_public_name(site, pages):
    rooms = [room for room in ORDER if room not in ("wagmf.cli", "wagmf.__main__")]
    assert {path.stem for path in (site / "api").glob("*.html")} == set(rooms)
    for room in rooms:
        names = public(ROOT / "src" / room.replace(".", "/"))
        found = pages[site / "api" / f"{room}.html"].anchors
        missing = [name for name in names if f"{room}.{name}" not in found]
        assert not missing, room


def test_examples_are_shown_as_python(site):
    for room in ("rule", "torch", "optax", "keras", "lab.compare"):
        assert '<div class="language-pycon highlight">' in (site / "api" / f"wagmf.{room}.html").read_text()


def public(place: Path) -> list[str]:
    """The names that a module offers, read and not imported."""
    source = (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text()
    listed = re.search(r"^__all__ = \[(.*?)\]", source, flags=re.M | re.S)
    return re.findall(r'"(\w+)"', listed[1]) if listed else []


def test_a_link_to_a_module_leads_to_its_page(site):
    # Links of the menu, which every page has, are of a class.
    assert '<a href="api/wagmf.lab.convolutions.html">' in (site / "benchmarks.html").read_text()


@pytest.fixture
def small(tmp_path):
    """The site with few modules of the package, those that pages link to; it is built in a few seconds."""
    for name in ("docs", "reproduction"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("records", "__pycache__"))
    (tmp_path / "src" / "wagmf" / "lab").mkdir(parents=True)
    for name in ("__init__.py", "weights.py", "arguments.py", "lab/convolutions.py", "lab/questions.py"):
        shutil.copy(ROOT / "src" / "wagmf" / name, tmp_path / "src" / "wagmf" / name)
    (tmp_path / "src" / "wagmf" / "__init__.py").write_text('"""Nothing is offered here."""\n')
    (tmp_path / "src" / "wagmf" / "lab" / "__init__.py").write_text('"""Nor here."""\n')
    shutil.copytree(
        ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("records", "__pycache__")
    )
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "reproduction" / "records").mkdir()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    return tmp_path


def test_a_strict_build_sees_what_is_wrong(small):
    page = small / "docs" / "report.md"
    page.write_text(page.read_text() + "\n[gone](gone.md) [nor](../src/gone.py) [there](theory.md#gone)\n")
    module = small / "src" / "wagmf" / "weights.py"
    module.write_text(
        module.read_text() + '\n\ndef f(x):\n    """A function.\n\n    Args:\n        y: nobody.\n    """\n'
    )
    built = build(small, small / "site")
    assert built.returncode == 1
    warnings = [line for line in built.stderr.splitlines() if line.startswith("WARNING")]
    for wrong in ("gone.md", "src/gone.py", "theory.md#gone", "Parameter 'y' does not appear"):
        assert any(wrong in line for line in warnings), (wrong, built.stderr)
    assert len(warnings) == 5  # y has no type either


def test_the_small_site_is_sound_by_itself(small):
    built = build(small, small / "site")
    assert built.returncode == 0, built.stderr


def load_hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_become_markdown():
    text = "See :func:`~wagmf.update`.\n\n>>> 1 + 1\n2\n\nThen:\n\n    >>> 3\n    3"
    fenced = "See `wagmf.update`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThen:\n\n    ```pycon\n    >>> 3\n    3\n    ```"
    assert load_hooks().as_markdown(text) == fenced


def test_links_out_of_the_site_become_words():
    hooks = load_hooks()
    assert hooks.in_words("demo.toml", ROOT / "experiments" / "demo.toml") == "`experiments/demo.toml`"
    assert hooks.in_words("the demo", ROOT / "experiments" / "demo.toml") == "the demo (`experiments/demo.toml`)"
    assert hooks.module_page(ROOT / "src" / "wagmf" / "torch" / "__init__.py") == "api/wagmf.torch.md"
    assert hooks.module_page(ROOT / "src" / "wagmf" / "torch") == "api/wagmf.torch.md"
    assert hooks.module_page(ROOT / "src" / "wagmf" / "gone.py") is None
    assert hooks.module_page(ROOT / "src" / "wagmf" / "cli.py") is None
