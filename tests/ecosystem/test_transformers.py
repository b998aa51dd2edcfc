"""Hugging Face's Trainer: ``optimizers=``, a class, a factory, and checkpoints that go on exactly."""

import pytest
import torch
from halves import lose_state, weights
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from wagmf.torch import WADA, param_groups_weight_decay

STEPS, HALF, WORDS = 8, 4, 16


class Sentences(torch.utils.data.Dataset):
    words = torch.randint(0, WORDS, (32, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.words[index]}


def tiny():
    """A language model with dropout, from its configuration alone."""
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


class Factory:
    """What Trainer makes without arguments and calls with the model."""

    def __call__(self, model, *, lr, weight_decay):
        groups = param_groups_weight_decay(model, weight_decay, ["transformer.wpe.weight"])
        return WADA(groups, lr=lr, decoupled_weight_decay=True)


def by_hand(model):
    optimizer = WADA(param_groups_weight_decay(model, 0.1), lr=0.01, decoupled_weight_decay=True)
    return {"optimizers": (optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1))}


WAYS = {
    "optimizers": by_hand,
    "class": lambda model: {"optimizer_cls_and_kwargs": (WADA, {"lr": 0.01, "decoupled_weight_decay": True})},
    "factory": lambda model: {"optimizer_cls_and_kwargs": (Factory, {"lr": 0.01, "weight_decay": 0.1})},
}


def train(way, folder, checkpoint=None, **options):
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=STEPS, save_steps=HALF, per_device_train_batch_size=4, weight_decay=0.1,
        use_cpu=True, report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    model = tiny()
    trainer = Trainer(model, arguments, train_dataset=Sentences(), **WAYS[way](model))
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_goes_on_exactly_and_would_not_without_the_state(way, tmp_path):
    whole = train(way, tmp_path / "whole")
    half = tmp_path / "whole" / f"checkpoint-{HALF}"
    resumed = train(way, tmp_path / "resumed", half)
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert {int(state["step"]) for state in resumed.optimizer.optimizer.state.values()} == {STEPS}
    lose_state(half / "optimizer.pt")
    assert not torch.equal(weights(train(way, tmp_path / "lost", half).model), weights(whole.model))


@pytest.mark.parametrize(("way", "decaying"), [("optimizers", 6), ("class", 6), ("factory", 5)])
def test_the_optimizer_is_ours_and_only_weights_decay(way, decaying, tmp_path):
    trainer = train(way, tmp_path, gradient_accumulation_steps=2)
    optimizer = trainer.optimizer.optimizer
    assert isinstance(optimizer, WADA)
    assert {group["weight_decay"]: len(group["params"]) for group in optimizer.param_groups} == {
        0.0: len(list(trainer.model.parameters())) - decaying,
        0.1: decaying,
    }
    assert all(path.endswith("by fused") for path in optimizer.paths)
