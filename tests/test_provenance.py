"""Where records come from: the commits that they name are in the history, and had the code that they were made with."""

import gzip
import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

from wagmf.lab.environment import code_hash
from wagmf.lab.records import configuration, restore

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "reproduction" / "records"
FOLDERS = (RECORDS, RECORDS / "anew", ROOT / "experiments" / "beyond" / "records")
ARCHIVES = [path for folder in FOLDERS for path in sorted(folder.glob("*.jsonl.gz"))]


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True).stdout


def history() -> bool:
    """Whether it is here: a source distribution has none, and a shallow clone little of it."""
    try:
        return git("rev-parse", "--is-shallow-repository").strip() == b"false"
    except (OSError, subprocess.CalledProcessError):
        return False


def made() -> dict[str, set[str]]:
    """The commits that runs carry, each with the hashes of its code."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in ARCHIVES:
        if path.name != "walks.jsonl.gz":  # whose hash is of fewer files
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    told = json.loads(line)["environment"]
                    found[told["commit"]].add(told["source"])
    return found


def published() -> dict[str, str]:
    """In the place of commits that never were, others with the same code."""
    text = (RECORDS / "README.md").read_text()
    return dict(re.findall(r"^\| ([0-9a-f]{40}) \| ([0-9a-f]{40}) \|", text, re.MULTILINE))


def code_of(commit: str, folder: Path) -> str:
    """The hash of the package's code at a commit."""
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src/wagmf"))) as archive:
        archive.extractall(folder, filter="data")
    return code_hash(folder / "src" / "wagmf")


def test_there_are_records_and_all_carry_a_commit_and_one_code_each():
    assert len(ARCHIVES) > 15
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) and len(sources) == 1 for commit, sources in made().items())


def test_every_run_is_filed_under_a_hash_of_its_configuration():
    """So that nobody has changed the one and not the other; data may have been moved."""
    count = 0
    for path in ARCHIVES:
        for run in restore(path)[0] if path.name != "walks.jsonl.gz" else ():
            assert run.key == hashlib.sha256(configuration(run).encode()).hexdigest()[:20], path.name
            count += 1
    assert count > 1500


@pytest.mark.skipif(not history(), reason="the history is not here")
@pytest.mark.parametrize("commit", sorted(made()))
def test_every_run_was_made_by_the_code_of_its_commit(commit, tmp_path):
    assert {code_of(published().get(commit, commit), tmp_path)} == made()[commit]


@pytest.mark.skipif(not history(), reason="the history is not here")
def test_commits_that_are_told_of_apart_are_those_that_are_not_in_the_history():
    commits = {*git("rev-list", "HEAD").decode().split()}
    assert {commit for commit in made() if commit not in commits} == {*published()}
    assert {*published().values()} <= commits
    with gzip.open(RECORDS / "walks.jsonl.gz", "rt") as lines:
        assert {json.loads(line)["commit"] for line in lines} <= commits
    assert {*pd.read_csv(RECORDS / "costs.csv")["commit"]} <= commits
