"""Datasets: fetched from a real server, known by their content, refused by name."""

import gzip
import hashlib
import http.server
import io
import os
import pickle
import resource
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import forks
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wagmf.lab.data as data
from wagmf.arguments import Refused
from wagmf.lab.data import Dataset, load

RANDOM = np.random.default_rng(0)
PUBLISHED = {published.name: published for published in data._PUBLISHED}


def arrays(n=20, shape=(1, 4, 4), classes=3):
    x = RANDOM.integers(0, 256, (n, *shape)).astype(np.uint8)
    return {"x_train": x, "y_train": np.arange(n) % classes, "x_test": x[:5], "y_test": np.arange(5) % classes}


def laid_out_for_torch(dataset):
    """As torch.from_numpy takes it without a warning or a copy."""
    parts = (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test)
    return all(part.flags.c_contiguous and part.flags.writeable for part in parts)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ------------------------------------------------------------------ a server with small datasets


class Site:
    """A server of files, which counts what it is asked for; ``before`` may answer in its place, by returning True."""

    def __init__(self, files):
        self.files, self.asked, self.before = files, [], lambda handler, name: False
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                site.asked.append(name)
                if not site.before(self, name):
                    self.answer(200 if name in site.files else 404, site.files.get(name, b""))

            def answer(self, status, content, length=None):
                self.send_response(status)
                self.send_header("Content-Length", str(len(content) if length is None else length))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    site = Site({})
    yield site
    site.close()


def publish(name, files, site, retries=0, packed=None):
    """The dataset as if it consisted of these contents, in the order of its files, published at the site.

    ``packed``, if it is given, is what a .tar.gz holds instead of the files.
    """
    real = PUBLISHED[name]
    contents = dict(zip((each.file for each in real.originals), files, strict=True))
    originals = []
    for each in real.originals:
        content = contents[each.file]
        tar = each.archive.name.endswith(".tar.gz")
        site.files[each.archive.name] = (packed or tar_of(contents)) if tar else gzip.compress(content, mtime=0)
        md5 = hashlib.md5(site.files[each.archive.name]).hexdigest()
        archive = replace(each.archive, md5=md5, sites=(site.address,))
        originals.append(replace(each, sha256=hashlib.sha256(content).hexdigest(), archive=archive))
    return replace(real, originals=tuple(originals), retries=retries)


def tar_of(contents, extra=()):
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in extra:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def link(name, target, kind=tarfile.SYMTYPE):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def idx(x):
    return bytes([0, 0, 8, x.ndim]) + np.array(x.shape, ">i4").tobytes() + x.tobytes()


def mnist_files():
    x, y = RANDOM.integers(0, 256, (6, 28, 28)).astype(np.uint8), np.arange(6).astype(np.uint8)
    return [idx(x), idx(y), idx(x[:2]), idx(y[:2])]


def cifar_files(name):
    labels = {"cifar10": 1, "cifar100": 2}[name]
    row = RANDOM.integers(0, 256, (len(PUBLISHED[name].originals), 4, labels + 3072)).astype(np.uint8)
    row[:, :, :labels] = np.arange(4 * labels).reshape(4, labels)
    return [part.tobytes() for part in row]


@pytest.fixture
def mnist(site):
    """A small MNIST at the site."""
    return publish("mnist", mnist_files(), site)


@pytest.fixture
def cifar(site):
    """A small CIFAR-100 at the site, of two files in one archive."""
    return publish("cifar100", cifar_files("cifar100"), site)


UNPACKED = ["mnist", *(f"mnist/{set_}-{kind}-ubyte" for set_ in ("t10k", "train") for kind in ("images-idx3",
            "labels-idx1"))]  # fmt: skip

# ------------------------------------------------------------------ downloads


def test_mnist_is_downloaded_once(mnist, site, tmp_path):
    first = mnist.load(tmp_path / "new" / "folder", False)
    assert first.x_train.shape == (6, 1, 28, 28)
    assert first.y_test.tolist() == [0, 1]
    assert np.array_equal(first.x_test, first.x_train[:2])
    assert laid_out_for_torch(first)
    assert site.asked == [each.archive.name for each in mnist.originals]
    again = mnist.load(tmp_path / "new" / "folder", False)
    assert len(site.asked) == 4
    assert again.digest == first.digest
    assert files_in(tmp_path / "new" / "folder") == UNPACKED  # and no archives


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_downloaded_as_one_archive(name, site, tmp_path):
    files = cifar_files(name)
    found = publish(name, files, site).load(tmp_path, False)
    assert len(site.asked) == 1
    labels = {"cifar10": 1, "cifar100": 2}[name]
    rows = np.frombuffer(b"".join(files), np.uint8).reshape(-1, labels + 3072)
    assert np.array_equal(np.concatenate([found.x_train, found.x_test]).reshape(-1, 3072), rows[:, labels:])
    assert found.y_test.tolist() == ([0, 1, 2, 3] if labels == 1 else [1, 3, 5, 7])  # the fine one of the two
    assert len(found.x_test) == 4
    assert found.shape == (3, 32, 32)
    assert laid_out_for_torch(found)


def test_progress_is_shown_where_it_is_wanted(mnist, tmp_path, capfd):
    mnist.load(tmp_path / "quiet", False)
    assert "%|" not in capfd.readouterr().err
    mnist.load(tmp_path / "loud", True)
    assert "100%|" in capfd.readouterr().err


def test_a_failing_server_is_asked_again(mnist, site, tmp_path):
    site.before = lambda handler, name: len(site.asked) == 1 and (handler.answer(500, b"") or True)
    assert replace(mnist, retries=1).load(tmp_path, False).classes == 6
    assert len(site.asked) == 5


def test_a_broken_connection_is_tried_again(cifar, site, tmp_path):
    """Half of the file comes, and then nothing."""

    def cut(handler, name):
        whole = site.files[name]
        return len(site.asked) == 1 and (handler.answer(200, whole[: len(whole) // 2], len(whole)) or True)

    site.before = cut
    with pytest.raises(
        Refused, match=r"(?s)Invalid download: 'cifar-100-binary.tar.gz'.*http://127.*(Incomplete|broken)"
    ):
        cifar.load(tmp_path, False)
    assert files_in(tmp_path) == []
    site.asked.clear()
    assert replace(cifar, retries=1).load(tmp_path, False).classes == 8
    assert len(site.asked) == 2


def test_a_wrong_download_is_refused_by_name(mnist, site, tmp_path):
    site.files["t10k-labels-idx1-ubyte.gz"] = gzip.compress(b"something else")
    with pytest.raises(Refused, match=r"t10k-labels-idx1-ubyte.gz.*127.0.0.1.*does not match the known hash"):
        mnist.load(tmp_path, False)
    assert files_in(tmp_path) == [name for name in UNPACKED if "t10k-labels" not in name]


def test_without_a_network_it_is_said_what_to_do_by_hand(site, tmp_path):
    files = cifar_files("cifar10")
    cifar10 = publish("cifar10", files, site)
    site.close()
    with pytest.raises(Refused) as error:
        cifar10.load(tmp_path, False)
    words = f"put it into {tmp_path}, as it is, or else what it holds: cifar-10-batches-bin/data_batch_1.bin, "
    assert words in str(error.value)
    assert f"What was tried: {site.address}cifar-10-binary.tar.gz: " in str(error.value)
    assert files_in(tmp_path) == []
    for each, content in zip(cifar10.originals, files, strict=True):  # as it says
        (tmp_path / each.file).parent.mkdir(exist_ok=True)
        (tmp_path / each.file).write_bytes(content)
    assert len(cifar10.load(tmp_path, False).x_train) == 20


def test_an_archive_put_there_by_hand_is_used_and_stays(cifar, site, tmp_path):
    name = "cifar-100-binary.tar.gz"
    (tmp_path / name).write_bytes(site.files[name])
    assert cifar.load(tmp_path, False).classes == 8
    assert site.asked == []
    assert files_in(tmp_path) == [name.removesuffix(".tar.gz"), name, "cifar-100-binary/test.bin",
                                  "cifar-100-binary/train.bin"]  # fmt: skip


def test_a_damaged_archive_put_there_by_hand_is_named_and_not_used(cifar, site, tmp_path):
    name = "cifar-100-binary.tar.gz"
    (tmp_path / name).write_bytes(site.files[name][:-9])
    with pytest.warns(RuntimeWarning, match=r"cifar-100-binary.tar.gz is damaged"):
        assert cifar.load(tmp_path, False).classes == 8
    assert site.asked == [name]


def test_the_next_site_is_asked(mnist, site, tmp_path):
    other = Site({"train-images-idx3-ubyte.gz": site.files.pop("train-images-idx3-ubyte.gz")})
    with pytest.raises(Refused, match=r"train-images-idx3-ubyte.gz.*404"):
        mnist.load(tmp_path, False)
    first = mnist.originals[0]
    both = replace(first, archive=replace(first.archive, sites=(site.address, other.address)))
    assert len(replace(mnist, originals=(both, *mnist.originals[1:])).load(tmp_path, False).x_train) == 6
    assert other.asked == ["train-images-idx3-ubyte.gz"]
    other.close()


DAMAGES = {
    "cut": lambda content: content[:-1],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
    "one byte": lambda content: flipped(content, 9),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_fetched_again(damage, mnist, site, tmp_path):
    first = mnist.load(tmp_path, False)
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=rf"{path} is damaged or not the original \({path.stat().st_size} bytes"):
        assert mnist.load(tmp_path, False).digest == first.digest
    assert site.asked[4:] == ["train-labels-idx1-ubyte.gz"]
    assert mnist.load(tmp_path, False).digest == first.digest  # mended for good


def test_only_what_is_damaged_is_written_again(cifar, tmp_path):
    cifar.load(tmp_path, False)
    good, bad = (tmp_path / each.file for each in cifar.originals)
    bad.write_bytes(b"")
    before = good.stat()
    with pytest.warns(RuntimeWarning, match="damaged"):
        cifar.load(tmp_path, False)
    assert good.stat().st_ino == before.st_ino
    assert bad.stat().st_size > 0


# ------------------------------------------------------------------ archives that are not what they should be


def test_nothing_is_written_outside_of_the_folder(site, tmp_path):
    """Other members of an archive, wherever they want to go, are not even looked at."""
    files = cifar_files("cifar100")
    escapes = [tarfile.TarInfo("../escaped.bin"), tarfile.TarInfo(f"{tmp_path}/escaped.bin"),
               link("cifar-100-binary", str(tmp_path)), link("cifar-100-binary/train.bin/..", "/")]  # fmt: skip
    escapes[0].size = escapes[1].size = 4
    names = [each.file for each in PUBLISHED["cifar100"].originals]
    packed = tar_of(dict(zip(names, files, strict=True)), escapes)
    assert publish("cifar100", files, site, packed=packed).load(tmp_path / "in", False).classes == 8
    assert files_in(tmp_path) == ["in", "in/cifar-100-binary", *(f"in/{name}" for name in sorted(names))]


TRAIN, TEST = "cifar-100-binary/train.bin", "cifar-100-binary/test.bin"
ARCHIVES = {
    "symbolic link out": (lambda a, b: tar_of({TEST: b}, [link(TRAIN, "/etc/passwd")]), "no plain file"),
    "hard link": (lambda a, b: tar_of({TEST: b, "x": a}, [link(TRAIN, "x", tarfile.LNKTYPE)]), "no plain file"),
    "symbolic link in": (lambda a, b: tar_of({TEST: b, "x": a}, [link(TRAIN, "../x")]), "no plain file"),
    "folder": (lambda a, b: tar_of({TEST: b}, [link(TRAIN, "", tarfile.DIRTYPE)]), "no plain file"),
    "absolute": (lambda a, b: tar_of({f"/{TRAIN}": a, f"/{TEST}": b}), "cannot be read"),
    "above": (lambda a, b: tar_of({f"../{TRAIN}": a, f"../{TEST}": b}), "cannot be read"),
    "file missing": (lambda a, b: tar_of({TEST: b}), "cannot be read"),
    "other content": (lambda a, b: tar_of({TRAIN: a[1:], TEST: b}), "but is another: 12,295 bytes"),
    "cut": (lambda a, b: tar_of({TRAIN: a, TEST: b})[:9000], "cannot be read"),
    "cut in the checksum": (lambda a, b: gzip.compress(b"")[:-3], "cannot be read"),
    "no tar": (lambda a, b: gzip.compress(b"text" * 999), "cannot be read"),
    "no gzip": (lambda a, b: b"text" * 999, "cannot be read"),
    "spoilt start": (lambda a, b: flipped(tar_of({TRAIN: a, TEST: b}), 10), "cannot be read"),
    "spoilt later": (lambda a, b: flipped(tar_of({TRAIN: a, TEST: b}), 9000), "wrong checksum"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_bad_archive_is_refused_by_name(name, site, tmp_path):
    """Even where its own checksum is the expected one."""
    make, words = ARCHIVES[name]
    files = cifar_files("cifar100")
    bad = publish("cifar100", files, site, packed=make(*files))
    with pytest.raises(Refused, match=r"Invalid archive: 'cifar-100-binary.tar.gz'") as error:
        bad.load(tmp_path, False)
    assert words in str(error.value)
    assert [name for name in files_in(tmp_path) if "train" in name or "download" in name] == []


@pytest.mark.parametrize(
    "packed", [b"text", gzip.compress(b"text" * 99)[:-9], gzip.compress(b"text")], ids=["no gzip", "cut", "other"]
)
def test_a_bad_gzip_is_refused_by_name(packed, mnist, site, tmp_path):
    first, *others = mnist.originals
    site.files[first.archive.name] = packed
    archive = replace(first.archive, md5=hashlib.md5(packed).hexdigest())
    with pytest.raises(Refused, match=r"Invalid archive: 'train-images-idx3-ubyte.gz'"):
        replace(mnist, originals=(replace(first, archive=archive), *others)).load(tmp_path, False)
    assert files_in(tmp_path) == []


# ------------------------------------------------------------------ folders


def test_a_full_disk_is_told_and_leaves_no_part_of_a_file(mnist, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # a file may have no more bytes
    try:
        with pytest.raises(Refused, match=r"Invalid data folder: .*cannot be kept in it: File too large; .*WAGMF_DATA"):
            mnist.load(tmp_path, False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path) == []


def test_no_part_of_a_file_is_left_when_only_the_unpacked_one_is_too_large(site, tmp_path):
    files = [idx(np.zeros((9, 28, 28), np.uint8)), idx(np.zeros(9, np.uint8))] * 2
    zeros = publish("mnist", files, site)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(Refused, match="File too large"):
            zeros.load(tmp_path, False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_in(tmp_path) == ["mnist"]


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_cannot_be_written_is_told(there, mnist):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            with pytest.raises(Refused, match=r"Invalid data folder: .*Permission denied; name another in WAGMF_DATA"):
                mnist.load(Path(folder) if there else Path(folder) / "new", False)
        finally:
            os.seteuid(user)
        os.chmod(folder, 0o755)
        assert os.listdir(folder) == []


def test_a_file_in_the_place_of_a_folder_is_told(mnist, tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(Refused, match=r"Invalid data file: .*train-images.* cannot be read: Not a directory"):
        mnist.load(tmp_path / "file", False)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").mkdir(parents=True)
    with pytest.raises(Refused, match=r"Invalid data file: .*train-images.* cannot be read: Is a directory"):
        mnist.load(tmp_path, False)


def test_two_processes_at_once(mnist, site, tmp_path):
    """They are in step: no archive is sent before both have asked for it."""
    both = threading.Barrier(2, timeout=60)
    site.before = lambda handler, name: both.wait() < 0
    program = (
        "import pickle, sys, pathlib\nmnist = pickle.load(sys.stdin.buffer)\n"
        "print(mnist.load(pathlib.Path(sys.argv[1]), False).digest)"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    pair = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env=forks.unmeasured()) for _ in range(2)]  # fmt: skip
    for process in pair:
        process.stdin.write(pickle.dumps(mnist))
        process.stdin.close()
        process.stdin = None
    ends = [(process.communicate(timeout=120), process.returncode) for process in pair]
    assert [code for _, code in ends] == [0, 0], ends
    assert len(site.asked) == 8
    digests = {said.decode().strip() for (said, _), _ in ends}
    assert digests == {mnist.load(tmp_path, False).digest}
    assert files_in(tmp_path) == UNPACKED
    assert len(site.asked) == 8


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("WAGMF_DATA", str(tmp_path))
    assert data.data_folder() == tmp_path
    monkeypatch.setenv("WAGMF_DATA", "~/here")
    assert data.data_folder() == Path.home() / "here"
    monkeypatch.setenv("WAGMF_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert data.data_folder() == tmp_path / "wagmf"


def test_a_name_is_looked_for_in_the_folder_named(mnist, tmp_path, monkeypatch):
    monkeypatch.setitem(data.DATASETS, "mnist", mnist.load)
    monkeypatch.setenv("WAGMF_DATA", str(tmp_path / "variable"))
    load("mnist", progress=False)
    assert files_in(tmp_path / "variable") == UNPACKED
    load("mnist", str(tmp_path / "argument"), progress=False)
    assert files_in(tmp_path / "argument") == UNPACKED


def test_the_originals_are_listed():
    """Each with checksums of its own, as long as they must be, at sites that nobody else can pose as."""
    rows = [row for published in data._PUBLISHED for row in published.originals]
    assert len({row.sha256 for row in rows}) == len({row.file for row in rows}) == len(rows) == 12
    assert len({row.archive.md5 for row in rows}) == 6
    assert all(len(row.sha256) == 64 and len(row.archive.md5) == 32 for row in rows)
    assert all(site.startswith("https://") and site.endswith("/") for row in rows for site in row.archive.sites)
    assert all(published.retries == 3 for published in data._PUBLISHED)
    assert list(data.DATASETS) == ["digits", "mnist", "cifar10", "cifar100"]


# ------------------------------------------------------------------ datasets


def test_files_and_arrays(tmp_path):
    mine = arrays()
    np.savez(tmp_path / "mine.npz", **mine, more=np.array([{}], dtype=object))  # which nobody has asked for
    np.savez_compressed(tmp_path / "small.npz", **mine)
    from_file, from_arrays = load(tmp_path / "mine.npz"), load(mine)
    assert from_file.digest == from_arrays.digest == load(str(tmp_path / "small.npz")).digest
    assert from_file.name == "mine.npz"
    assert load(from_file) is from_file


def test_arrays_are_copied():
    mine = arrays()
    dataset = load(mine)
    before = dataset.x_train.copy()
    mine["x_train"][:] = 0
    assert np.array_equal(dataset.x_train, before)


def test_the_digest_is_of_the_content():
    mine = arrays(n=6, shape=(2, 2))
    digest = load(mine).digest
    assert len(digest) == 16
    assert replace(load(mine), name="other").digest == digest
    assert load({**mine, "x_train": np.asfortranarray(mine["x_train"])}).digest == digest
    changes = [{"y_train": mine["y_train"][::-1]}, {"y_test": mine["y_test"][::-1]}, {"x_test": mine["x_test"][::-1]},
               {"x_train": mine["x_train"] ^ 1}, {"x_train": mine["x_train"].astype(float)}]  # fmt: skip
    digests = [load({**mine, **change}).digest for change in changes]
    flat = {key: mine[key].reshape(len(mine[key]), -1) if key[0] == "x" else mine[key] for key in mine}
    assert len({digest, load(flat).digest, *digests}) == 7


def test_the_digest_is_computed_once():
    dataset = load(arrays())
    digest = dataset.digest
    dataset.x_train[:] = 0  # which one must not do
    assert dataset.digest is digest
    assert pickle.loads(pickle.dumps(dataset)).digest == digest


def test_grey_images_get_a_channel_and_labels_are_int64():
    mine = load({**arrays(shape=(4, 4)), "y_train": (np.arange(20) % 3).astype(np.uint8)})
    assert mine.shape == (1, 4, 4)
    assert mine.y_train.dtype == np.int64
    assert repr(mine) == "Dataset('arrays', 20 + 5 examples of shape (1, 4, 4), 3 classes)"


@pytest.mark.parametrize(("given", "kept"), [("u1", "u1"), ("f2", "f2"), ("f4", "f4"), ("f8", "f8"), ("i8", "f8"),
                                             (">f4", "f8"), ("g", "f8")])  # fmt: skip
def test_numbers_are_uint8_or_floats_that_torch_has(given, kept):
    mine = arrays()
    dataset = load({**mine, "x_train": mine["x_train"].astype(given)})
    assert dataset.x_train.dtype == np.dtype(kept)
    assert dataset.x_train.dtype.isnative
    assert np.array_equal(dataset.x_train, mine["x_train"])


def test_lists_and_tensors_are_arrays_too():
    import torch

    rows = [[1.0, 2.0], [3.0, 4.0]]
    dataset = Dataset("lists", rows, [0, 1], torch.tensor(rows), torch.tensor([0, 1]))
    assert dataset.x_train.tolist() == dataset.x_test.tolist() == rows


def test_a_dataset_is_frozen():
    with pytest.raises(AttributeError):
        load(arrays()).name = "other"


def test_normalised_by_the_training_set(monkeypatch):
    monkeypatch.setattr(data, "_ROWS", 7)  # so that there are several parts
    mine = load({**arrays(n=50, shape=(3, 4, 4)), "x_test": np.full((5, 3, 4, 4), 255, np.uint8)})
    new = mine.normalised()
    assert new.x_train.dtype == new.x_test.dtype == np.float32
    mean = mine.x_train.astype(float).mean((0, 2, 3))[:, None, None]
    sd = mine.x_train.astype(float).std((0, 2, 3))[:, None, None]
    np.testing.assert_allclose(new.x_train, (mine.x_train - mean) / sd, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(new.x_test, (mine.x_test - mean) / sd, rtol=1e-6)
    assert new.digest != mine.digest
    assert (new.name, new.classes, mine.x_train.dtype) == (mine.name, mine.classes, np.uint8)


def test_what_never_varies_becomes_zero():
    """Even where the computed mean is not the constant: that of 0.1 is off by a rounding here."""
    x = np.stack([np.arange(1000.0), np.full(1000, 0.1), np.full(1000, 1e9) + np.arange(1000) % 2], axis=1)
    y = np.zeros(1000, int)
    assert x[:, 1].mean() != 0.1
    new = Dataset("rows", x, y, x + 0.5, y).normalised()
    assert not new.x_train[:, 1].any()
    np.testing.assert_array_equal(new.x_test[:, 1], 0.5)
    np.testing.assert_array_equal(new.x_train[:4, 2], [-1, 1, -1, 1])  # in float32 alone it would be constant
    np.testing.assert_allclose(new.x_train[:, 0].std(), 1, rtol=1e-6)


def test_digits():
    digits = load("digits")
    assert (len(digits.x_train), len(digits.x_test), digits.shape, digits.classes) == (1437, 360, (1, 8, 8), 10)
    assert digits.x_train.dtype == np.uint8
    assert digits.x_train.max() == 16
    assert set(np.bincount(digits.y_test)) <= {35, 36, 37}
    images = [image.tobytes() for part in (digits.x_train, digits.x_test) for image in part]
    assert len(set(images)) == 1797  # none is in both
    assert len(set(digits.y_train[:50])) == len(set(digits.y_test[:50])) == 10  # not by class
    assert digits.digest == "e6a0944fa6119fcf"


# ------------------------------------------------------------------ refusals


def written(folder, content):
    (folder / "bad.npz").write_bytes(content)
    return folder / "bad.npz"


def saved(folder, **changes):
    np.savez(folder / "bad.npz", **{**arrays(), **changes})
    return folder / "bad.npz"


def repacked(folder, name, content, **options):
    """A right zip file with a member that is no right array."""
    whole = zipfile.ZipFile(saved(folder))
    with whole, zipfile.ZipFile(folder / "bad2.npz", "w") as new:
        for each in whole.namelist():
            new.writestr(each, content if each == name else whole.read(each), **options)
    return folder / "bad2.npz"


def npy(shape, dtype="<f8", content=b""):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content


def spoilt(folder):
    return written(folder, flipped(saved(folder).read_bytes(), 300))


def renamed(folder):
    mine = arrays()
    np.savez(folder / "bad.npz", **{key: mine[key] for key in mine if key != "y_train"}, y=mine["y_train"])
    return folder / "bad.npz"


def mine(**changes):
    return load({**arrays(), **changes})


X = np.ones((5, 1, 4, 4))
NAN = np.where(np.arange(4) == 2, np.nan, X)
OBJECT = np.array([{}], dtype=object)
NO_ZIP = "/bad.npz' (it must be one that numpy.savez has written; x_train cannot be read: File is not a zip file)"
BAD = {
    "name": (lambda f: load("cifar"), "Invalid dataset: 'cifar' (did you mean 'cifar10'? choose from digits, mnist, "),
    "other file": (lambda f: load("mine.npy"), "cifar100, a file that ends in .npz, module:function)"),
    "number": (lambda f: load(5), "Invalid dataset: 5 (choose from digits"),
    "progress": (lambda f: load("digits", progress=1), "Invalid progress: 1 (progress must be True or False)"),
    "folder": (lambda f: load("digits", 5), "Invalid folder: 5 (it must be a path)"),
    "no folder": (lambda f: load("digits", ""), "Invalid folder: '' (it must be a path)"),
    "no name": (lambda f: Dataset("", X, range(5), X, range(5)), "Invalid name of a dataset: '' (it must be text)"),
    # files
    "no file": (lambda f: load("nowhere.npz"), "Invalid data file: 'nowhere.npz' (there is no such file)"),
    "directory": (lambda f: load((f / "bad.npz").mkdir() or f / "bad.npz"), "Is a directory"),
    "no npz": (lambda f: load(written(f, b"text")), NO_ZIP),
    "empty file": (lambda f: load(written(f, b"")), NO_ZIP),
    "one array": (lambda f: load(written(f, npy((1,), content=bytes(8)))), NO_ZIP),
    "a pickle": (lambda f: load(written(f, pickle.dumps(arrays()))), NO_ZIP),
    "cut npz": (lambda f: load(written(f, saved(f).read_bytes()[:-200])), NO_ZIP),
    "spoilt npz": (lambda f: load(spoilt(f)), "/bad.npz' (x_train.npy in it is damaged: its checksum is another)"),
    "text inside": (lambda f: load(repacked(f, "y_train.npy", b"text")), "Invalid y_train in bad2.npz: '|S4 of shape"),
    "cut inside": (lambda f: load(repacked(f, "y_train.npy", npy((20,)))), "bad2.npz' (it must be one that numpy.save"),
    "no header": (lambda f: load(repacked(f, "x_test.npy", b"\x93NUMPY\x01\x00")), "x_test cannot be read: "),
    "bad header": (lambda f: load(repacked(f, "x_test.npy", npy("((("))), "x_test cannot be read: "),
    "huge": (lambda f: load(repacked(f, "x_test.npy", npy((10**15, 2)))), "x_test cannot be read: "),
    "objects": (lambda f: load(saved(f, x_train=OBJECT)), "x_train cannot be read: Object arrays cannot be loaded"),
    "key missing": (lambda f: load(renamed(f)), "/bad.npz: ['x_train', 'x_test', 'y_test', 'y'] (there must be "
                    "x_train, y_train, x_test, y_test; y_train is missing)"),
    "missing": (lambda f: load({"x_train": X, 1: X}), "Invalid arrays in arrays: ['x_train', '1'] (there must be "
                "x_train, y_train, x_test, y_test; y_train, x_test, y_test is missing)"),
    # examples
    "objects here": (lambda f: mine(x_train=OBJECT), "Invalid x_train in arrays: 'object of shape (1,)' (numbers of"),
    "text": (lambda f: mine(x_train=np.array([["a"]])), "Invalid x_train in arrays: '<U1 of shape (1, 1)'"),
    "complex": (lambda f: mine(x_test=X * 1j), "Invalid x_test in arrays: 'complex128 of shape (5, 1, 4, 4)'"),
    "ragged": (lambda f: mine(x_train=[[1], [1, 2]]), "Invalid x_train in arrays: 'list' (it must be an array: "),
    "nan": (lambda f: load(saved(f, x_test=NAN)), "Invalid x_test in bad.npz: nan (all numbers must be finite; this "
            "one is at [0, 0, 0, 2])"),
    "infinite": (lambda f: mine(x_test=X * -np.inf), "Invalid x_test in arrays: -inf (all numbers must be finite"),
    "one axis": (lambda f: load(saved(f, x_train=np.ones(20))), "x_train in bad.npz: 'float64 of shape (20,)' (num"),
    "five axes": (lambda f: mine(x_test=X[..., None]), "'float64 of shape (5, 1, 4, 4, 1)' (numbers of shape (n, "),
    "empty": (lambda f: mine(x_test=X[:0], y_test=np.arange(0)), "x_test in arrays: 'float64 of shape (0, 1, 4, 4)'"),
    "no features": (lambda f: mine(x_train=np.ones((20, 0))), "x_train in arrays: 'float64 of shape (20, 0)'"),
    "channels last": (lambda f: mine(x_train=np.ones((20, 8, 8, 3))), "channels come first: x.transpose(0, 3, 1, 2)"),
    "shapes": (lambda f: mine(x_test=X[..., :3]), "Invalid x_test in arrays: 'examples of shape (1, 4, 3)' (an "
               "example must have the same shape as in x_train, (1, 4, 4))"),
    # labels
    "lengths": (lambda f: load(saved(f, y_train=np.arange(3))), "Invalid y_train in bad.npz: 'int64 of shape (3,)' "
                "(whole numbers from 0, one for each of the 20 examples: integers of shape (20,))"),
    "one-hot": (lambda f: mine(y_test=np.eye(5, dtype=int)), "Invalid y_test in arrays: 'int64 of shape (5, 5)'"),
    "floats": (lambda f: mine(y_test=np.zeros(5)), "Invalid y_test in arrays: 'float64 of shape (5,)' (whole numbers"),
    "flags": (lambda f: mine(y_test=np.zeros(5, bool)), "Invalid y_test in arrays: 'bool of shape (5,)'"),
    "negative": (lambda f: mine(y_train=np.arange(20) - 1), "Invalid y_train in arrays: -1 (whole numbers from 0"),
    "too large": (lambda f: mine(y_train=np.full(20, 2**64 - 1, np.uint64)), "y_train in arrays: 18446744073709551615"),
    "new class": (lambda f: mine(y_test=np.full(5, 3)), "Invalid y_test in arrays: 3 (the classes of y_train are 0 to "
                  "2, and y_test must hold no other)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused_by_name(name, tmp_path):
    call, words = BAD[name]
    with pytest.raises(Refused) as error:
        call(tmp_path)
    assert words in str(error.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_spoilt_file_is_refused_or_does_not_matter(tmp_path, draw):
    """One byte is another, or the end is missing, anywhere: never are there other numbers."""
    whole = WHOLE.getvalue()
    place, flip = draw.draw(st.integers(0, len(whole) - 1)), draw.draw(st.integers(0, 255))
    spoilt = whole[:place] + (bytes([whole[place] ^ flip]) + whole[place + 1 :] if flip else b"")
    try:
        found = load(written(tmp_path, spoilt)).digest
    except Refused as error:
        found = str(error)
    assert found == DIGEST or "bad.npz" in found


WHOLE = io.BytesIO()
SMALL = arrays(n=5, shape=(2,))
np.savez(WHOLE, **SMALL)
DIGEST = load(SMALL).digest
