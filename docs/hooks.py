"""What the site needs beyond the pages of this folder: other files of the repository, and a page for each module.

In the pages links are as the repository has them. Here a link to a file that is no part of the site becomes the page
of that module, or the file's name.
"""

import os
import re
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).absolute().parent.parent
GROUPS = {"": "The rule", "torch": "PyTorch", "optax": "optax", "keras": "Keras", "lab": "The lab"}
COMMANDS = {"wagmf.cli", "wagmf.__main__"}  # their reference is wagmf --help


def modules() -> list[str]:
    """Every module that can be imported, packages before what they hold."""
    parts = [path.relative_to(ROOT / "src").with_suffix("").parts for path in (ROOT / "src").rglob("*.py")]
    names = {".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts}
    return sorted(names - COMMANDS)


def group(module: str) -> str:
    """The part of the package that a module belongs to: of ``wagmf.torch.named`` it is torch."""
    second = [*module.split("."), ""][1]
    return second if second in GROUPS else ""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    pages = {
        title: [{name: f"api/{name}.md"} for name in modules() if group(name) == key] for key, title in GROUPS.items()
    }
    config.nav = [*(config.nav or []), {"API reference": [{title: rooms} for title, rooms in pages.items()]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The reproduction and the study beyond it, with figures and tables, and a page for each module."""
    for folder in (ROOT / "reproduction", ROOT / "experiments" / "beyond"):
        for path in [folder / "README.md", *folder.glob("*.csv"), *folder.glob("figures/*")]:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for name in modules():
        files.append(File.generated(config, f"api/{name}.md", content=f"---\ntitle: {name}\n---\n\n::: {name}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; pictures, and what stands between fences, are left alone."""
    if page.file.abs_src_path is None:  # made above
        return markdown
    places = {file.abs_src_path: file.src_uri for file in files if file.abs_src_path}
    here, start = os.path.dirname(page.file.abs_src_path), os.path.dirname(page.file.src_uri) or "."

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found.groups(default="")
        path = Path(os.path.normpath(os.path.join(here, target)))
        if ROOT not in path.parents or not path.exists():
            return found[0]  # an address elsewhere, or a mistake that the strict build tells
        uri = places.get(str(path)) or module_page(path)
        return f"[{words}]({os.path.relpath(uri, start)}{anchor})" if uri else in_words(words, path)

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)
    parts[::2] = [re.sub(r"(?<!!)\[([^][]*)\]\(([^)#\s]+)(#[^)]*)?\)", link, part) for part in parts[::2]]
    return "".join(parts)


def module_page(path: Path) -> str | None:
    """The page of the module in this file or folder, if it is one."""
    name = path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("src/").removesuffix("/__init__")
    name = name.replace("/", ".")
    return f"api/{name}.md" if name in modules() else None


def in_words(words: str, path: Path) -> str:
    """A link that leads out of the site, as text: where to look in the repository."""
    name = path.relative_to(ROOT).as_posix()
    return f"`{name}`" if name.endswith(words.strip("`")) else f"{words} (`{name}`)"


class Docstrings(griffe.Extension):
    """Docstrings as Markdown: examples in fences, references to other names as code."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring whose paragraphs that begin with ``>>>`` are fenced, up to the next empty line."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text)
    return re.sub(r"^( *)(>>> .*?)(?=\n *\n|\Z)", r"\1```pycon\n\1\2\n\1```", text, flags=re.M | re.S)
