"""Lightning: ``configure_optimizers`` with groups and a scheduler, and a checkpoint that goes on exactly."""

import lightning
import pytest
import torch
from halves import lose_state, small_data, small_model, weights

from wagmf.torch import WADA, param_groups_weight_decay

pytestmark = [
    # Lightning's own: of loaders that have no workers, and of how it asks torch about trees.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
]

EPOCHS, HALF, STEPS = 4, 2, 4  # in an epoch


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = small_model()

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.mse_loss(self.model(x), y)

    def configure_optimizers(self):
        optimizer = WADA(param_groups_weight_decay(self, 0.01), lr=0.01, decoupled_weight_decay=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * STEPS + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(folder, epochs, checkpoint=None, **options):
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(small_data(), batch_size=8)
    trainer.fit(Module(), loader, ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.5}, {"accumulate_grad_batches": 2}], ids=str)
def test_a_checkpoint_goes_on_exactly_and_would_not_without_the_state(options, tmp_path):
    whole = fit(tmp_path, EPOCHS, **options)
    file = tmp_path / "half.ckpt"
    fit(tmp_path, HALF, **options).save_checkpoint(file)
    resumed = fit(tmp_path, EPOCHS, file, **options)
    assert resumed.global_step == whole.global_step
    assert torch.equal(weights(resumed.model), weights(whole.model))
    (ours,), (theirs,) = resumed.optimizers, whole.optimizers
    assert [group["lr"] for group in ours.param_groups] == [group["lr"] for group in theirs.param_groups]
    lose_state(file, "optimizer_states", 0)
    assert not torch.equal(weights(fit(tmp_path, EPOCHS, file, **options).model), weights(whole.model))


def test_it_trains_and_groups_are_what_they_should_be(tmp_path):
    losses = []

    class Listener(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            losses.append(float(outputs["loss"]))

    trainer = fit(tmp_path, EPOCHS, callbacks=[Listener()])
    (optimizer,) = trainer.optimizers
    assert isinstance(optimizer, WADA)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.01]
    assert {int(state["step"]) for state in optimizer.state.values()} == {EPOCHS * STEPS}
    assert sum(losses[-STEPS:]) < 0.9 * sum(losses[:STEPS])
