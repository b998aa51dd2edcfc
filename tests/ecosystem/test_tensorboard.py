"""TensorBoard, also as Lightning's logger: what was told is read back, and goes on from a checkpoint exactly."""

import lightning
import pytest
import torch
from halves import lose_state, small_data, small_model
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from wagmf.torch import WADA, param_groups_weight_decay, watch

STEPS, HALF, EVERY = 40, 20, 10
TAGS = {"lr", "window", "V/min", "V/median", "V/max", "update/norm", "update/rms", "update/ratio"}


def read(folder):
    """Lists of step and value by tag."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


class Run:
    def __init__(self, folder, saved=None, **path):
        self.model, self.folder = small_model(), folder
        self.optimizer = WADA(param_groups_weight_decay(self.model, 0.01), lr=0.01, **path)
        self.writer = SummaryWriter(str(folder))
        watch(self.optimizer, self.writer, every=EVERY)  # before the checkpoint is loaded, as trainers would
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])

    def train(self, steps):
        x, y = small_data().tensors
        for _ in range(steps):
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
        self.writer.close()
        return read(self.folder)

    def saved(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


@pytest.mark.parametrize("path", [{"fused": True}, {"foreach": True}, {"fused": False, "foreach": False}], ids=str)
def test_what_was_written_is_read_back(path, tmp_path):
    run = Run(tmp_path, **path)
    told = run.train(STEPS)
    assert set(told) == {f"optimizer/group{number}/{tag}" for number in (0, 1) for tag in TAGS}
    assert all([step for step, _ in each] == list(range(EVERY, STEPS + 1, EVERY)) for each in told.values())
    window = run.optimizer.param_groups[0]["rule"].weights.window
    for number in (0, 1):
        said = {tag: dict(told[f"optimizer/group{number}/{tag}"]) for tag in TAGS}
        assert said["lr"] == pytest.approx(dict.fromkeys(said["lr"], 0.01))
        assert said["window"] == pytest.approx({step: window(step) for step in said["window"]})
        assert all(0 < said["V/min"][t] <= said["V/median"][t] <= said["V/max"][t] for t in said["lr"])


def test_a_checkpoint_goes_on_exactly_and_would_not_without_the_state(tmp_path):
    whole = Run(tmp_path / "whole").train(STEPS)
    first = Run(tmp_path / "first")
    first.train(HALF)
    file = tmp_path / "checkpoint"
    torch.save(first.saved(), file)
    saved = torch.load(file, weights_only=True)
    resumed = Run(tmp_path / "second", saved).train(STEPS - HALF)
    assert resumed == {tag: [(step, value) for step, value in each if step > HALF] for tag, each in whole.items()}
    saved["optimizer"]["state"] = {}
    lost = Run(tmp_path / "lost", saved).train(STEPS - HALF)
    for tag in ("window", "V/median", "update/norm"):
        assert lost[f"optimizer/group1/{tag}"] != resumed[f"optimizer/group1/{tag}"]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = small_model()

    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = WADA(self.parameters(), lr=0.01)
        watch(optimizer, self.logger.experiment, every=EVERY)
        return optimizer


# Lightning's own: of loaders that have no workers, and of how it asks torch about trees.
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
def test_lightning_logs_it_on_from_its_own_checkpoint(tmp_path):
    def fit(name, epochs, checkpoint=None):
        logger = TensorBoardLogger(tmp_path, name=name, version="")
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=logger, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, log_every_n_steps=1,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(small_data(), batch_size=4), ckpt_path=checkpoint)
        told = read(tmp_path / name)
        return trainer, {tag: each for tag, each in told.items() if tag.startswith("optimizer/")}

    _, whole = fit("whole", 4)
    trainer, _ = fit("first", 2)
    file = tmp_path / "half.ckpt"
    trainer.save_checkpoint(file)
    _, resumed = fit("second", 4, file)
    assert set(whole) == {f"optimizer/group0/{tag}" for tag in TAGS}
    assert resumed == {tag: [(step, value) for step, value in each if step > 16] for tag, each in whole.items()}
    lose_state(file, "optimizer_states", 0)
    assert fit("lost", 4, file)[1] != resumed
