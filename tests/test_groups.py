"""Parameter groups: what decays, and what does not."""

import io

import pytest
import torch
from torch import nn

from wagmf.torch import WADA, param_groups_weight_decay


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.many = nn.ParameterDict({"bias": torch.zeros(2, 4)})  # a bias with two axes, as in stacked models
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def names(groups):
    return {group["weight_decay"]: [name for name, _ in group["params"]] for group in groups}


def test_weights_decay_and_the_rest_does_not():
    spared = ["norm.weight", "norm.bias", "linear.bias", "many.bias"]
    assert names(param_groups_weight_decay(Net(), 0.1)) == {
        0.0: spared,
        0.1: ["token", "embedding.weight", "linear.weight"],
    }
    named = param_groups_weight_decay(Net(), 0.1, {"token", "embedding.weight", "frozen.weight", "not.there"})
    assert names(named) == {0.0: ["token", "embedding.weight", *spared], 0.1: ["linear.weight"]}


def test_an_optimizer_takes_them_with_their_names():
    model = Net()
    optimizer = WADA(param_groups_weight_decay(model, 0.1), lr=0.5, decoupled_weight_decay=True)
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    for x in model.parameters():
        x.grad = torch.zeros_like(x) if x.requires_grad else None
    optimizer.step()
    for name, x in model.named_parameters():
        kept = 0.95 if name in ("token", "embedding.weight", "linear.weight") else 1.0
        torch.testing.assert_close(x.detach(), before[name] * kept)
    saved = optimizer.state_dict()["param_groups"]
    assert [group["param_names"][0] for group in saved] == ["norm.weight", "token"]


def test_a_checkpoint_goes_on_exactly_and_would_not_without_the_state():
    def start(saved=None):
        torch.manual_seed(0)
        model = Net()
        optimizer = WADA(param_groups_weight_decay(model, 0.1), lr=0.1, decoupled_weight_decay=True)
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        return model, optimizer

    def go_on(model, optimizer, first, last):
        for t in range(first, last):
            for x in optimizer.param_groups[0]["params"] + optimizer.param_groups[1]["params"]:
                x.grad = torch.sin(x.detach() * 3 + t)
            optimizer.step()
        return torch.cat([x.detach().reshape(-1) for x in model.parameters()])

    whole, (model, optimizer), file = go_on(*start(), 0, 10), start(), io.BytesIO()
    go_on(model, optimizer, 0, 5)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert torch.equal(go_on(*start(saved), 5, 10), whole)
    saved["optimizer"]["state"] = {}
    assert not torch.equal(go_on(*start(saved), 5, 10), whole)


@pytest.mark.parametrize("model", [nn.Linear(3, 2, bias=False), nn.LayerNorm(3)])
def test_a_group_without_parameters_is_left_out(model):
    (group,) = param_groups_weight_decay(model, 0.1)
    assert group["weight_decay"] == (0.1 if isinstance(model, nn.Linear) else 0.0)
    WADA([group])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-1.0,), r"weight_decay: -1\.0 \(weight_decay must be a finite number >= 0\)"),
        ((0.1, "token"), r"no_weight_decay_list: 'token' \(a list of names"),
    ],
)
def test_bad_calls_are_refused_by_name_and_value(arguments, named):
    with pytest.raises(ValueError, match=named):
        param_groups_weight_decay(Net(), *arguments)
