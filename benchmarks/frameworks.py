"""One optimizer step in JAX and Keras: ours beside the Adam of optax and of Keras, taking turns in one process.

    python benchmarks/frameworks.py [--out FILE.json] [--only NAME ...]   on the CPU, and on a GPU where one is seen
    python benchmarks/frameworks.py --report FILE.json ...                the tables of earlier runs

Every front end has a process of its own and is timed as training runs it: optax under jit, overwriting parameters and
state; Keras on JAX likewise, through ``stateless_apply``; Keras on TensorFlow as a graph that XLA compiles, which is
what ``fit`` does unless told otherwise, and as a plain graph; Keras on torch eagerly. Before that the very optimizers
that are timed take three steps: our Adam must then be where theirs is, and WADA where the float64 oracle is. In a round
each takes equally many steps, back to back, in an order that is drawn anew. Ratios are taken within rounds; of them,
the median and the quartiles are told. Their Adam has a twin: as far as its ratio is from 1, the others can be off.
Compiling is not timed.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from step import GPU, Timed, processor, resnet20, size

from wagmf.methods import method
from wagmf.online import OnlineLearner

MODELS = {
    # As JAX and Keras lay kernels out, channels last. XLA's loops over torch's 3 × 3 that come last are not vectorized.
    "ResNet-20": [(*shape[2:], *shape[1::-1]) for shape in resnet20()],
    "20 M": [(20_000_000,)],
}
FRONT_ENDS = {  # and what they need, which may not be there
    "optax": ("jax", "optax"),
    "keras-tensorflow": ("keras", "tensorflow"),
    "keras-jax": ("keras", "jax"),
    "keras-torch": ("keras", "torch"),
}
THEIRS, TWIN, OURS, WADA = "their Adam", "the same again", "wagmf Adam", "wagmf WADA"
LR = 0.1
EPS = 1e-15  # Keras adds it to an average that is not corrected yet: this one is too small for that to be seen
LONGEST = 0.02  # about the seconds of one contender in a round, unless a step takes longer


class Contender(Timed):
    """An optimizer that steps the arrays x, which have gradients; ``numpy`` turns such an array into NumPy's."""

    def numbers(self, most=None):
        """All parameters in one row, or the first numbers of each."""
        self.wait()
        return np.concatenate([np.ravel(self.numpy(x))[:most] for x in self.x])


class Optax(Contender):
    """Update and addition in one jit."""

    def __init__(self, optimizer, arrays, device):
        import jax
        import optax

        def update(x, state, grads):
            changes, state = optimizer.update(grads, state, x)
            return optax.apply_updates(x, changes), state

        self.x, self.grads = jax.device_put(arrays, device)
        self.state = jax.device_put(optimizer.init(self.x), device)
        self.update, self.block, self.numpy = jax.jit(update, donate_argnums=(0, 1)), jax.block_until_ready, np.asarray

    def step(self):
        self.x, self.state = self.update(self.x, self.state, self.grads)

    def wait(self):
        self.block((self.x, self.state))


class Keras(Contender):
    """Keras on torch, which waits as torch does."""

    def __init__(self, optimizer, arrays):
        import keras

        self.x = [keras.Variable(x) for x in arrays[0]]
        self.grads = [keras.ops.convert_to_tensor(g) for g in arrays[1]]
        self.optimizer, self.numpy = optimizer, keras.ops.convert_to_numpy
        optimizer.build(self.x)

    @torch.no_grad()
    def step(self):
        self.optimizer.apply(self.grads, self.x)


class KerasJAX(Keras):
    """``stateless_apply`` in one jit, where x and the state are in the order in which it returns them, as in ``fit``.

    In its own order JAX would give the memory of m to x, and XLA would have to copy both.
    """

    def __init__(self, optimizer, arrays):
        import jax

        def update(x, state, grads):
            return optimizer.stateless_apply(state, grads, x)

        super().__init__(optimizer, arrays)
        self.x, self.state = ([each.value for each in row] for row in (self.x, optimizer.variables))
        self.update, self.block = jax.jit(update, donate_argnums=(0, 1)), jax.block_until_ready

    def step(self):
        self.x, self.state = self.update(self.x, self.state, self.grads)

    def wait(self):
        self.block((self.x, self.state))


class KerasTensorFlow(Keras):
    """A graph; gradients are arguments of it, since small ones that it captures would be constants, and folded."""

    def __init__(self, optimizer, arrays, xla):
        import tensorflow

        super().__init__(optimizer, arrays)
        self.update = tensorflow.function(lambda grads: optimizer.apply(grads, self.x), jit_compile=xla)
        self.wait = tensorflow.test.experimental.sync_devices

    def step(self):
        self.update(self.grads)


def of_optax():
    """The ways to run a step, and the optimizers."""
    import jax
    import optax

    import wagmf.optax

    devices = {device.platform: device for device in (jax.devices("cpu")[0], jax.devices()[0])}
    ways = {f"optax, jit, {where}": partial(Optax, device=device) for where, device in devices.items()}
    makers = {THEIRS: optax.adam, TWIN: optax.adam, OURS: wagmf.optax.adam, WADA: wagmf.optax.wada}
    return ways, {name: partial(make, LR, eps=EPS) for name, make in makers.items()}


def of_keras():
    import keras

    import wagmf.keras

    ways = {"jax": keras_on_jax, "tensorflow": keras_on_tensorflow, "torch": keras_on_torch}
    theirs = partial(keras.optimizers.Adam, LR, epsilon=EPS)
    ours = {OURS: partial(wagmf.keras.Adam, LR, eps=EPS), WADA: partial(wagmf.keras.WADA, LR, eps=EPS)}
    return ways[keras.backend.backend()](), {THEIRS: theirs, TWIN: theirs, **ours}


def keras_on_jax():
    import jax

    return {f"Keras on JAX, jit, {jax.default_backend()}": KerasJAX}


def keras_on_tensorflow():
    import tensorflow

    tensorflow.get_logger().setLevel("ERROR")  # it warns of making many graphs, which is what we are here for
    where = "gpu" if tensorflow.config.list_physical_devices("GPU") else "cpu"
    kinds = {"XLA": True, "plain graph": False}
    return {f"Keras on TensorFlow, {kind}, {where}": partial(KerasTensorFlow, xla=xla) for kind, xla in kinds.items()}


def keras_on_torch():
    return {f"Keras on torch, eager, {'gpu' if GPU else 'cpu'}": Keras}


def check(contenders, arrays, factors=(1.0, 3.0, 0.5), near=2e-5):
    """How far our Adam is from theirs, and the first numbers of WADA from the oracle's, after unequal steps."""
    for one in contenders.values():
        grads = one.grads
        for factor in factors:
            one.grads = [factor * g for g in grads]
            one.step()
        one.grads = grads
    x, g = (np.concatenate([np.ravel(a)[:2000] for a in row]).astype(np.float64) for row in arrays)
    oracle = OnlineLearner(method("wada").rule, x, lr=LR, eps=EPS)
    for factor in factors:
        oracle.update(factor * g)
    off = {
        "off": contenders[OURS].numbers() - contenders[THEIRS].numbers(),
        "off_oracle": contenders[WADA].numbers(2000) - oracle.predict(),
    }
    off = {name: float(np.abs(difference).max()) for name, difference in off.items()}
    assert max(off.values()) < near, f"after {len(factors)} steps ours are elsewhere: {off}"
    return off


def in_turns(contenders, rounds):
    """Microseconds per step, and ratios to theirs within a round: medians and quartiles."""
    for one in contenders.values():
        one.round(3)
    steps = max(1, round(LONGEST / contenders[THEIRS].round(1)[0]))
    seen = {name: [] for name in contenders}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            seen[name].append(contenders[name].round(steps)[0] / steps * 1e6)
    times = {}
    for name, walls in seen.items():
        low, ratio, high = statistics.quantiles([a / b for a, b in zip(walls, seen[THEIRS], strict=True)])
        times[name] = {"wall": statistics.median(walls), "best": min(walls), "ratio": ratio, "low": low, "high": high}
    return {"rounds": rounds, "steps": steps, "times": times}


def measured(front_end, models, rounds):
    """All that this process can run, by model."""
    ways, makers = of_optax() if front_end == "optax" else of_keras()
    found = {}
    for model in models:
        turns = rounds if size(MODELS[model]) < 10_000_000 else max(5, rounds // 5)
        normal = np.random.default_rng(0).standard_normal
        arrays = [[normal(shape, np.float32) for shape in MODELS[model]] for _ in range(2)]
        found[model] = {}
        for way, contender in ways.items():
            contenders = {name: contender(make(), arrays) for name, make in makers.items()}
            found[model][way] = {**check(contenders, arrays), **in_turns(contenders, turns)}
            ratios = {name: round(row["ratio"], 2) for name, row in found[model][way]["times"].items()}
            print(model, way, ratios, file=sys.stderr)
    return found


def in_its_process(front_end, models, rounds):
    command = [sys.executable, __file__, "--measure", front_end, "--rounds", str(rounds)]
    command += [word for model in models for word in ("--only", model)]
    environment = {
        **os.environ,
        "KERAS_BACKEND": front_end.removeprefix("keras-"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # or JAX takes most of a GPU for itself
    }
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def everything(front_ends, models, rounds):
    runs = {model: {} for model in models}
    for front_end in front_ends:
        missing = [name for name in FRONT_ENDS[front_end] if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{front_end} is left out: there is no {missing[0]}", file=sys.stderr)
            continue
        for model, found in in_its_process(front_end, models, rounds).items():
            runs[model] |= found
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor()}, {os.cpu_count()} threads",
        "gpu": torch.cuda.get_device_name() if GPU else None,
        "python": platform.python_version(),
        "versions": versions(),
        "models": {m: {"tensors": len(MODELS[m]), "numbers": size(MODELS[m]), "runs": runs[m]} for m in models},
    }


def versions():
    """Of what has a part in it, where it is present."""
    found = {}
    for name in ("jax", "optax", "keras", "tensorflow", "tensorflow-cpu", "torch", "Numba"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def table(report):
    """The report as Markdown."""
    parts = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    machine = " and ".join(filter(None, (report["machine"], report["gpu"])))
    lines = [f"**{machine}**, Python {report['python']}, {parts}; {report['date']}.", ""]
    heads = ["rounds × steps", f"{THEIRS} µs", *(head for who in (TWIN, OURS, WADA) for head in (f"{who} µs", "ratio"))]
    for name, model in report["models"].items():
        lines += [f"{name}: {model['tensors']} tensors, {model['numbers']:,} numbers", ""]
        lines += ["| | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        for way, run in model["runs"].items():
            cells = [f"{run['rounds']} × {run['steps']}", f"{run['times'][THEIRS]['wall']:,.0f}"]
            for row in (run["times"][who] for who in (TWIN, OURS, WADA)):
                cells += [f"{row['wall']:,.0f}", f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})"]
            lines.append(f"| {way} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def chosen(names, only):
    """Those that are asked for; all, where none of them is."""
    return [name for name in names if name in only] or list(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of earlier runs")
    parser.add_argument("--rounds", type=int, default=200, help="a fifth of them for 20 M")
    names = [*FRONT_ENDS, *MODELS]
    parser.add_argument("--only", action="append", default=[], choices=names, help="to run; may be given repeatedly")
    parser.add_argument("--measure", choices=list(FRONT_ENDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    models = chosen(MODELS, options.only)
    if options.report:
        print("\n".join(table(json.loads(path.read_text())) for path in options.report), end="")
    elif options.measure:
        print(json.dumps(measured(options.measure, models, options.rounds)))
    else:
        report = everything(chosen(FRONT_ENDS, options.only), models, options.rounds)
        print(table(report))
        if options.out:
            options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
