"""Characters of English prose, and a small transformer that says the next one: a workload the paper does not have.

The text is that of ``help()``: the topics of Python's language reference, which every Python ships as
``pydoc_data.topics``. Other versions of Python have other words in it; runs are filed under a digest of the data, so
that those of two texts are never mixed, and records say which Python they were made with.
"""

import hashlib
from pydoc_data.topics import topics

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
CONTEXT = 64
HELD_OUT = 26  # of 256 paragraphs


def paragraphs() -> list[str]:
    """Every paragraph once, however it is indented, since topics quote one another; but for what is not plain ASCII.

    >>> found = paragraphs()
    >>> len(found) == len(set(found)) > 1000
    True
    """
    found: dict[str, str] = {}
    for name in sorted(topics):
        for part in topics[name].split("\n\n"):
            found.setdefault(" ".join(part.split()), part.strip("\n"))
    return [part for words, part in found.items() if words and set(part) <= set(ALPHABET)]


def text() -> tuple[str, str]:
    """What is trained on, and what is held out: about a tenth of the paragraphs, by their checksums.

    >>> train, test = text()
    >>> 8 < len(train) / len(test) < 12
    True
    """
    parts: tuple[list[str], list[str]] = ([], [])
    for paragraph in paragraphs():
        parts[hashlib.sha256(paragraph.encode()).digest()[0] < HELD_OUT].append(paragraph)
    train, test = ("\n\n".join(part) for part in parts)
    return train, test


def windows(text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The text in pieces of so many characters as the transformer sees, and the character after each of them.

    >>> x, y = windows("ab" * CONTEXT)
    >>> x.shape, bool((x[0, 1:] == y[0, :-1]).all())
    ((1, 64), True)
    """
    places = np.array([ALPHABET.index(character) for character in text])
    count = (len(places) - 1) // CONTEXT
    x, y = (places[shift : shift + count * CONTEXT].reshape(count, CONTEXT) for shift in (0, 1))
    return x, y


def topics_of_python() -> dict[str, NDArray[np.int64]]:
    """The data as the lab takes them.

    >>> sorted(topics_of_python())
    ['x_test', 'x_train', 'y_test', 'y_train']
    """
    (x_train, y_train), (x_test, y_test) = map(windows, text())
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each after a layer norm and beside a shortcut.

    >>> Block(8, 2)(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attend(self.before(x)))
        return x + self.feed(self.between(x))

    def attend(self, x: Tensor) -> Tensor:
        """What each place takes from itself and those before it."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, 2))
        scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return (scores.masked_fill(later, -torch.inf).softmax(3) @ v).transpose(1, 2).flatten(2)


class Transformer(nn.Module):
    """A decoder of two blocks, 64 wide, with four heads and learned positions.

    >>> Transformer()(torch.zeros(5, CONTEXT, dtype=torch.int64)).shape
    torch.Size([5, 64, 96])
    """

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))
        for table in (self.letters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of the character after each place."""
        places = self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(self.letters(x) + places)))
