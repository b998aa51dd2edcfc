"""Do stacks train as networks do that are trained alone? The same model on the same data, twice, before time is spent.

    python benchmarks/plain.py [--epochs 3] [--seeds 6] [--only mlp ...] [--data cifar10] [--out FILE.json]
    python benchmarks/plain.py --report FILE.json ...       # the table of earlier runs

On one side the lab's stack, as the reproduction runs it (on a GPU compiled, recorded as a graph, in bfloat16 except for
softmax regression). On the other the loop that everybody writes: torch's layers in float32, ``torch.optim.Adam``,
``torch.randperm``, ``nn.Dropout``, images shifted and mirrored by torch. Only the first weights are shared. Losses and
accuracies of the two must therefore agree as far as seeds agree with each other: the table has the means, and their
difference in standard errors. A file that is there already keeps its other models.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch.nn import functional as F

from wagmf.lab.data import load
from wagmf.lab.engine import Stack
from wagmf.lab.models import MODELS, initial, zoo
from wagmf.lab.plain import plain
from wagmf.lab.spec import Arm, Problem

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LR = {"softmax": 0.01, "mlp": 3e-4, "cnn": 1e-3, "resnet20": 1e-3}
SHOWN = ("train_loss", "test_accuracy")


def problem_of(model, data, epochs):
    """As the reproduction has it, but shorter; a milestone after all but the last epoch."""
    if model == "softmax":
        return Problem(data, model, epochs=epochs, decay=0.5, l2=1e-4, precision="float32")
    penalty = 1e-4 if model == "resnet20" else 0.0
    flip = data.startswith("cifar")
    return Problem(data, model, epochs=epochs, decay=0.0, milestones=(epochs - 1,), shift=0.1, flip=flip, l2=penalty)


def stacked(problem, data, seeds):
    """What the stack says at the end: metric -> a value for each seed."""
    model = zoo(problem.model, data.shape, data.classes)
    stack = Stack(problem, model, data, [Arm("adam", LR[problem.model])], seeds, DEVICE)
    for _ in range(problem.epochs):
        stack.train()
    return {metric: stack.curves[metric][-1][:, 0].tolist() for metric in SHOWN}


def alone(problem, data, seed):
    """What a plain network says at the end."""
    torch.manual_seed(seed)
    model = zoo(problem.model, data.shape, data.classes)
    net = plain(model)
    net.load_state_dict({name: torch.tensor(x) for name, x in initial(model, seed).items()}, strict=False)
    net, normal = net.to(DEVICE), data.normalised()
    x, x_test = (torch.tensor(part, dtype=torch.float32, device=DEVICE) for part in (normal.x_train, normal.x_test))
    y, y_test = (torch.tensor(part, device=DEVICE) for part in (normal.y_train, normal.y_test))
    optimizer = torch.optim.Adam(net.parameters(), lr=LR[problem.model], eps=problem.eps)
    t = 0
    for epoch in range(1, problem.epochs + 1):
        net.train()
        losses, places = [], torch.randperm(len(y), device=DEVICE)
        for start in range(0, len(y) - problem.batch + 1, problem.batch):
            chosen = places[start : start + problem.batch]
            t += 1
            optimizer.param_groups[0]["lr"] = LR[problem.model] * problem.rate(epoch) * t ** -(problem.decay or 0.0)
            weights = [param for param in net.parameters() if param.ndim > 1]
            penalty = problem.l2 * sum(weight.square().sum() for weight in weights) if problem.l2 else 0.0
            loss = F.cross_entropy(net(varied(x[chosen], problem)), y[chosen]) + penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        net.eval()
    with torch.no_grad():
        right = torch.cat([net(part).argmax(1) for part in x_test.split(1000)]) == y_test
    return {"train_loss": torch.stack(losses).mean().item(), "test_accuracy": right.double().mean().item()}


def varied(images, problem):
    """Shifted by a crop of the padded image, and mirrored, each by itself."""
    if not problem.shift:
        return images
    count, _, height, width = images.shape
    reach = int(problem.shift * height)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    rows, columns = torch.randint(0, 2 * reach + 1, (2, count, 1), device=images.device)
    rows, columns = rows + torch.arange(height, device=rows.device), columns + torch.arange(width, device=rows.device)
    moved = padded[torch.arange(count, device=rows.device)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    moved = moved.permute(0, 3, 1, 2)
    mirrored = (torch.rand(count, device=images.device) < 0.5)[:, None, None, None]
    return torch.where(mirrored, moved.flip(3), moved) if problem.flip else moved


def compared(model, name, epochs, seeds):
    data = load(name)
    problem = problem_of(model, name, epochs)
    ours = stacked(problem, data, list(range(seeds)))
    plainly = [alone(problem, data, seed) for seed in range(seeds)]
    rows = []
    for metric in SHOWN:
        a, b = ours[metric], [each[metric] for each in plainly]
        error = ((statistics.variance(a) + statistics.variance(b)) / seeds) ** 0.5
        apart = (statistics.mean(a) - statistics.mean(b)) / error
        rows.append({"model": model, "data": name, "metric": metric, "stacked": a, "alone": b, "errors_apart": apart})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of earlier runs")
    asked = parser.parse_args()
    if asked.report:
        print("\n\n".join(table(json.loads(path.read_text())) for path in asked.report))
        return
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "a CPU"
    found = {"device": where, "epochs": asked.epochs, "rows": []}
    for model in asked.only:
        found["rows"] += compared(model, asked.data, asked.epochs, asked.seeds)
        if asked.out:
            write(asked.out, found)
    print(table(found))


def write(path, found):
    """With what the file has of other models, if it is of the same kind."""
    earlier = json.loads(path.read_text()) if path.exists() else {"rows": []}
    same = all(earlier.get(name) == found[name] for name in ("device", "epochs"))
    names = {row["model"] for row in found["rows"]}
    others = [row for row in earlier["rows"] if same and row["model"] not in names]
    path.write_text(json.dumps({**found, "rows": others + found["rows"]}, indent=1) + "\n")


def table(found):
    rows = sorted(found["rows"], key=lambda row: list(MODELS).index(row["model"]))
    lines = [
        f"**On {found['device']}**: {found['epochs']} epochs of Adam",
        "",
        "| model | | metric | seeds | stacked | alone | difference in standard errors |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        means = [f"{statistics.mean(row[side]):.4f}" for side in ("stacked", "alone")]
        what = f"{row['model']} | {row['data']} | {row['metric'].replace('_', ' ')} | {len(row['alone'])}"
        lines.append(f"| {what} | {' | '.join(means)} | {row['errors_apart']:+.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
