"""Datasets: images or rows of numbers with a label each, or sequences of tokens with a label for each place.

``digits`` comes with scikit-learn. ``mnist``, ``cifar10`` and ``cifar100`` are downloaded once, into the folder that
the variable WAGMF_DATA names, or else the user's cache. The original files that lie there are known by the checksum of
their content; one that is damaged is named and fetched again.
"""

import gzip
import hashlib
import os
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wagmf.arguments import Refused, flag, one_of, refuse
from wagmf.lab.files import write_whole
from wagmf.lab.sources import first_line, named

__all__ = ["DATASETS", "Dataset", "data_folder", "load"]

_KEPT = (np.dtype(np.uint8), np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))
_MOST_CLASSES = 1_000_000  # a model has an output for each: a label beyond is no class, but a mistake
_ROWS = 2_000  # at a time, so that nothing but the result is ever as large as the data


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """What is learned: x has a row per example, images as (channels, height, width); y are classes, counted from 0.

    The arrays are in C order and writable, as ``torch.from_numpy`` likes them: x uint8 or floats, y int64. Images
    without channels get one, and whole numbers other than uint8 become float64. Do not write into them: the digest is
    computed only once.

    Sequences are whole numbers from 0, x and y both of shape (n, length): y has what is to be said at each place of x,
    such as the next letter, out of one alphabet. They stay whole numbers, int64.

    >>> rows = np.arange(6.0).reshape(3, 2)
    >>> Dataset("mine", rows, np.array([0, 1, 2]), rows, np.array([0, 1, 2]))
    Dataset('mine', 3 + 3 examples of shape (2,), 3 classes)
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            refuse("name of a dataset", self.name, "it must be text")
        for part in ("train", "test"):
            x, y = (_array(f"{axis}_{part} in {self.name}", getattr(self, f"{axis}_{part}")) for axis in "xy")
            if _sequences(x, y):
                x, y = (_tokens(f"{axis}_{part} in {self.name}", each) for axis, each in (("x", x), ("y", y)))
            else:
                x = _examples(f"x_{part} in {self.name}", x)
                y = _labels(f"y_{part} in {self.name}", y, len(x))
            object.__setattr__(self, f"x_{part}", x)
            object.__setattr__(self, f"y_{part}", y)
        if self.x_test.shape[1:] != self.shape:
            right = f"an example must have the same shape as in x_train, {self.shape}"
            refuse(f"x_test in {self.name}", f"examples of shape {self.x_test.shape[1:]}", right)
        if self.y_test.ndim != self.y_train.ndim:
            right = "either both are sequences with a label for each place, or none is"
            refuse(f"y_test in {self.name}", f"labels of shape {self.y_test.shape}", right)
        for part, values in {"y": self.y_test, **({"x": self.x_test} if self.tokens else {})}.items():
            if values.max() >= self.classes:
                right = f"the classes of y_train are 0 to {self.classes - 1}, and {part}_test must hold no other"
                refuse(f"{part}_test in {self.name}", int(values.max()), right)

    def __repr__(self) -> str:
        sizes = f"{len(self.x_train)} + {len(self.x_test)} examples of shape {self.shape}"
        return f"Dataset({self.name!r}, {sizes}, {self.classes} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an example."""
        return self.x_train.shape[1:]

    @property
    def classes(self) -> int:
        """How many there are: one more than the largest label, or token."""
        largest = int(self.y_train.max())
        return 1 + (max(largest, int(self.x_train.max())) if self.tokens else largest)

    @property
    def tokens(self) -> bool:
        """Whether examples are sequences of tokens."""
        return self.y_train.ndim == 2

    @cached_property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of the content, by which records name it; the name is no part of it."""
        sums = hashlib.sha256()
        for part in (self.x_train, self.y_train, self.x_test, self.y_test):
            sums.update(f"{part.dtype.str}{part.shape}".encode())
            sums.update(part.data)
        return sums.hexdigest()[:16]

    def normalised(self) -> "Dataset":
        """In float32, less the mean of the training set and over its standard deviation, of every channel or feature.

        What never varies in the training set becomes 0 there. Tokens are left as they are.

        >>> rows = np.array([[1.0, 5.0], [3.0, 5.0]])
        >>> Dataset("rows", rows, np.array([0, 1]), rows, np.array([0, 1])).normalised().x_train.tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
        """
        if self.tokens:
            return self
        mean, scale = _statistics(self.x_train)
        x_train, x_test = (_scaled(x, mean, scale) for x in (self.x_train, self.x_test))
        return replace(self, x_train=x_train, x_test=x_test)


def _examples(what: str, value: Any) -> NDArray[Any]:
    x = _array(what, value)
    if x.dtype.kind not in "uif" or x.ndim not in (2, 3, 4) or not x.size:
        right = "numbers of shape (n, features), (n, height, width) or (n, channels, height, width), none of them 0"
        refuse(what, f"{x.dtype} of shape {x.shape}", right)
    if x.ndim == 4 and x.shape[1] == x.shape[2] > 4 and x.shape[3] in (1, 3, 4):
        refuse(what, f"{x.dtype} of shape {x.shape}", "channels come first: x.transpose(0, 3, 1, 2)")
    if x.dtype.kind == "f" and not (finite := np.isfinite(x)).all():
        place = tuple(map(int, np.argwhere(~finite)[0]))
        refuse(what, float(x[place]), f"all numbers must be finite; this one is at {list(place)}")
    x = x[:, None] if x.ndim == 3 else x
    return np.require(x, x.dtype if x.dtype in _KEPT else np.float64, ["C", "W"])


def _sequences(x: NDArray[Any], y: NDArray[Any]) -> bool:
    return y.ndim == 2 and x.shape == y.shape and x.dtype.kind in "ui" and y.dtype.kind in "ui" and bool(x.size)


def _tokens(what: str, value: NDArray[Any]) -> NDArray[np.int64]:
    return _labels(what, value.reshape(-1), value.size).reshape(value.shape)


def _labels(what: str, value: Any, n: int) -> NDArray[np.int64]:
    y = _array(what, value)
    right = f"whole numbers from 0, one for each of the {n} examples"
    if y.dtype.kind not in "ui" or y.shape != (n,):
        refuse(what, f"{y.dtype} of shape {y.shape}", f"{right}: integers of shape ({n},)")
    for extreme in (int(y.min()), int(y.max())):
        if not 0 <= extreme < _MOST_CLASSES:
            refuse(what, extreme, f"{right}, and below {_MOST_CLASSES:,}")
    return np.require(y, np.int64, ["C", "W"])


def _array(what: str, value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of unequal length; tensors on a GPU or with gradients
        refuse(what, type(value).__name__, f"it must be an array: {error}")


def _statistics(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation in float64, by channel or feature; of a constant, itself and 1."""
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    low = x.min(axes, keepdims=True)
    constant = low == x.max(axes, keepdims=True)  # the computed mean of a constant may be off by a rounding
    mean = np.where(constant, low, x.mean(axes, keepdims=True, dtype=np.float64))
    squares = sum(((x[i : i + _ROWS] - mean) ** 2).sum(axes, keepdims=True) for i in range(0, len(x), _ROWS))
    return mean, np.where(constant, 1.0, np.sqrt(squares / (x.size // mean.size)))


def _scaled(x: NDArray[Any], mean: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float32]:
    new = np.empty(x.shape, np.float32)
    for i in range(0, len(x), _ROWS):
        new[i : i + _ROWS] = (x[i : i + _ROWS] - mean) / scale
    return new


def load(source: Any, folder: str | os.PathLike[str] | None = None, *, progress: bool = True) -> Dataset:
    """A dataset by its name, from an ``.npz`` file, from arrays, from a function, or as it is.

    Args:
        source: one of :data:`DATASETS`; the path of a file with the arrays x_train, y_train, x_test and y_test; a
            mapping with those, which are copied; a :class:`Dataset`; or ``module:function``, which gives such.
        folder: where downloads are kept; by default :func:`data_folder`.
        progress: show how far a download has come.

    >>> load("digits")
    Dataset('digits', 1437 + 360 examples of shape (1, 8, 8), 10 classes)
    """
    flag("progress", progress)
    if folder is not None and not (isinstance(folder, str | os.PathLike) and os.fspath(folder)):
        refuse("folder", folder, "it must be a path")
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Mapping):
        return _from_arrays("arrays", source)
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        return _from_file(Path(source).expanduser())
    if isinstance(source, str) and ":" in source:
        return _from_function(source)
    name = one_of("dataset", source, [*DATASETS, "a file that ends in .npz", "module:function"])
    return DATASETS[name](Path(folder).expanduser() if folder is not None else data_folder(), progress)


def data_folder() -> Path:
    """The folder for downloads: the one that WAGMF_DATA names, or ``wagmf`` in the user's cache.

    >>> isinstance(data_folder(), Path)
    True
    """
    named = os.environ.get("WAGMF_DATA")
    if named:
        return Path(named).expanduser()
    import pooch

    return Path(pooch.os_cache("wagmf"))


_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def _from_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    _all_there(name, arrays)
    return Dataset(name, *(_array(f"{key} in {name}", arrays[key]).copy() for key in _ARRAYS))


def _from_function(name: str) -> Dataset:
    right = "module:function, which is without arguments and gives x_train, y_train, x_test and y_test"
    make = named("dataset", name, right)
    try:
        made = make()
    except Refused:
        raise
    except Exception as error:  # whatever the user's code may raise
        raise Refused(f"Invalid dataset: {name!r} (it cannot be made: {first_line(error)})") from error
    if isinstance(made, Dataset):
        return made
    return _from_arrays(name, made) if isinstance(made, Mapping) else refuse("dataset", name, right)


def _all_there(name: str, arrays: Mapping[str, Any]) -> None:
    missing = [key for key in _ARRAYS if key not in arrays]
    if missing:
        right = f"there must be {', '.join(_ARRAYS)}; {', '.join(missing)} is missing"
        refuse(f"arrays in {name}", [str(key) for key in arrays], right)


def _from_file(path: Path) -> Dataset:
    arrays = {}
    try:
        with path.open("rb") as opened:
            with zipfile.ZipFile(opened) as archive:
                damaged = archive.testzip()  # numpy checks no more than it needs of a member
            if damaged:
                refuse("data file", str(path), f"{damaged} in it is damaged: its checksum is another")
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as file:
                _all_there(str(path), file)
                for key in _ARRAYS:
                    arrays[key] = file[key]
    except FileNotFoundError:
        refuse("data file", str(path), "there is no such file")
    except Refused:
        raise
    except Exception as error:  # numpy, zipfile, zlib, tokenize, struct: each has its own for what it cannot read
        key = next(key for key in _ARRAYS if key not in arrays)
        refuse("data file", str(path), f"it must be one that numpy.savez has written; {key} cannot be read: {error}")
    return Dataset(path.name, **arrays)


def _digits(folder: Path, progress: bool) -> Dataset:
    """scikit-learn's 1,797 images of 8 × 8. Every fifth of each class is for testing.

    The order is that of the images' checksums, which is as good as a random one and the same everywhere, for ever.
    """
    from sklearn.datasets import load_digits

    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    x = x.reshape(-1, 1, 8, 8).astype(np.uint8)
    sums = [hashlib.sha256(image.tobytes()).digest() for image in x]
    by_class = sorted(range(len(x)), key=lambda i: (y[i], sums[i]))
    test = sorted(by_class[::5], key=sums.__getitem__)
    train = sorted(set(by_class) - set(test), key=sums.__getitem__)
    return Dataset("digits", x[train], y[train], x[test], y[test])


@dataclass(frozen=True)
class _Archive:
    """What is downloaded: a ``.tar.gz``, or one file as ``.gz``."""

    name: str
    md5: str  # as published; what counts is the checksum of the content
    sites: tuple[str, ...]


@dataclass(frozen=True)
class _Original:
    """A file as the dataset's authors publish it: its path, the checksum of its content, and what it comes in."""

    file: str
    sha256: str
    archive: _Archive


@dataclass(frozen=True)
class _Published:
    """A dataset by its original files, and how their contents become x_train, y_train, x_test and y_test."""

    name: str
    originals: tuple[_Original, ...]
    read: Callable[[list[bytes]], tuple[NDArray[Any], ...]]
    retries: int = 3

    def load(self, folder: Path, progress: bool) -> Dataset:
        """From the folder; what is missing there, or damaged, is fetched."""
        contents = {each: found for each in self.originals if (found := _known(folder / each.file, each.sha256))}
        missing = [each for each in self.originals if each not in contents]
        try:
            for archive in dict.fromkeys(each.archive for each in missing):
                wanted = [each for each in missing if each.archive == archive]
                with self._packed(archive, folder, progress) as packed:
                    contents |= {each: _kept(folder / each.file, _unpacked(packed, each)) for each in wanted}
        except OSError as error:
            right = f"the original files cannot be kept in it: {error.strerror or error}; name another in WAGMF_DATA"
            refuse("data folder", str(folder), right)
        return Dataset(self.name, *self.read([contents[each] for each in self.originals]))

    @contextmanager
    def _packed(self, archive: _Archive, folder: Path, progress: bool) -> Iterator[Path]:
        """The archive that somebody has put into the folder; or else a download, which is gone afterwards."""
        if _known(folder / archive.name, archive.md5, "md5") is not None:
            yield folder / archive.name
            return
        folder.mkdir(parents=True, exist_ok=True)
        # A folder for this download alone: another process may be at the same one.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as own:
            yield self._downloaded(archive, Path(own), progress)

    def _downloaded(self, archive: _Archive, own: Path, progress: bool) -> Path:
        import pooch
        import requests

        tried = []
        for site in archive.sites:
            known = {archive.name: f"md5:{archive.md5}"}
            store = pooch.create(path=own, base_url=site, registry=known, retry_if_failed=self.retries)
            try:
                return Path(store.fetch(archive.name, progressbar=progress))
            except (requests.RequestException, ValueError) as error:  # ValueError: not the checksum
                tried.append(f"{site}{archive.name}: {error}")
        files = ", ".join(each.file for each in self.originals if each.archive == archive)
        by_hand = f"get it by other means and put it into {own.parent}, as it is, or else what it holds: {files}"
        refuse("download", archive.name, f"{by_hand}. What was tried: {'; '.join(tried)}")


def _known(path: Path, checksum: str, kind: str = "sha256") -> bytes | None:
    """The content of a file that is the original; one that is not is named."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse("data file", str(path), f"it cannot be read: {error.strerror}")
    if hashlib.new(kind, content, usedforsecurity=False).hexdigest() == checksum:
        return content
    told = f"{path} is damaged or not the original ({len(content):,} bytes); it is fetched again"
    warnings.warn(told, RuntimeWarning, stacklevel=2)
    return None


def _unpacked(packed: Path, original: _Original) -> bytes:
    """One file, read out of its archive by name: nothing is ever written where an archive says."""
    what, right = "archive", f"{original.file} in it must be the original"
    try:
        content = _from_tar(packed, original.file) if packed.name.endswith(".tar.gz") else _from_gzip(packed)
    except (OSError, EOFError, KeyError, zlib.error, tarfile.TarError) as error:
        refuse(what, packed.name, f"{right}, but cannot be read: {error}")
    if hashlib.sha256(content).hexdigest() != original.sha256:
        refuse(what, packed.name, f"{right}, but is another: {len(content):,} bytes with the wrong checksum")
    return content


def _from_tar(packed: Path, name: str) -> bytes:
    with tarfile.open(packed, "r:gz") as archive:
        member = archive.getmember(name)
        file = archive.extractfile(member) if member.isreg() else None  # a link would be followed
        if file is None:
            raise KeyError("it is no plain file")
        return file.read()


def _from_gzip(packed: Path) -> bytes:
    with gzip.open(packed) as file:
        return file.read()


def _kept(path: Path, content: bytes) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda new: new.write_bytes(content))
    return content


def _idx(content: bytes) -> NDArray[np.uint8]:
    """An array in the format of MNIST: two zeros, the type, the number of axes, their lengths, the numbers."""
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _read_mnist(contents: list[bytes]) -> tuple[NDArray[Any], ...]:
    return tuple(map(_idx, contents))


def _read_cifar10(contents: list[bytes]) -> tuple[NDArray[Any], ...]:
    return _read_cifar(contents, labels=1)


def _read_cifar100(contents: list[bytes]) -> tuple[NDArray[Any], ...]:
    return _read_cifar(contents, labels=2)


def _read_cifar(contents: list[bytes], labels: int) -> tuple[NDArray[Any], ...]:
    """Rows of labels, of which the last is the finest, and an image; the last file is for testing."""
    rows = [np.frombuffer(content, np.uint8).reshape(-1, labels + 3072) for content in contents]
    train, test = np.concatenate(rows[:-1]), rows[-1]
    return tuple(
        array for part in (train, test) for array in (part[:, labels:].reshape(-1, 3, 32, 32), part[:, labels - 1])
    )


# The mirror first: the authors' own server has not always been there.
_MNIST_SITES = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://yann.lecun.com/exdb/mnist/")
_CIFAR_SITES = ("https://www.cs.toronto.edu/~kriz/",)
_CIFAR10 = _Archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", _CIFAR_SITES)
_CIFAR100 = _Archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", _CIFAR_SITES)

_MNIST_FILES = (
    (
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    ),
    (
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "d53e105ee54ea40749a09fcbcd1e9432",
    ),
    (
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "9fb629c4189551a2d022fa330f9573f3",
    ),
    (
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
_CIFAR10_FILES = (
    ("data_batch_1", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
    ("data_batch_2", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
    ("data_batch_3", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
    ("data_batch_4", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
    ("data_batch_5", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
    ("test_batch", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
)
_CIFAR100_FILES = (
    ("train", "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
    ("test", "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
)

_PUBLISHED = (
    _Published(
        "mnist",
        tuple(
            _Original(f"mnist/{name}", sha256, _Archive(f"{name}.gz", md5, _MNIST_SITES))
            for name, sha256, md5 in _MNIST_FILES
        ),
        _read_mnist,
    ),
    _Published(
        "cifar10",
        tuple(_Original(f"cifar-10-batches-bin/{name}.bin", sha256, _CIFAR10) for name, sha256 in _CIFAR10_FILES),
        _read_cifar10,
    ),
    _Published(
        "cifar100",
        tuple(_Original(f"cifar-100-binary/{name}.bin", sha256, _CIFAR100) for name, sha256 in _CIFAR100_FILES),
        _read_cifar100,
    ),
)

DATASETS: Mapping[str, Callable[[Path, bool], Dataset]] = {
    "digits": _digits,
    **{published.name: published.load for published in _PUBLISHED},
}
"""The datasets that have a name."""
