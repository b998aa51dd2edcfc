"""accelerate: ``prepare``, accumulated gradients, and ``save_state`` and ``load_state`` that go on exactly."""

import pytest
import torch
from accelerate import Accelerator
from halves import lose_state, small_data, small_model, weights

from wagmf.torch import WADA, param_groups_weight_decay

EPOCHS, HALF = 4, 2


class Run:
    """A model in training, ``together`` batches to a step."""

    def __init__(self, together=1):
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=together)
        model = small_model(dropout=0.1)
        optimizer = WADA(param_groups_weight_decay(model, 0.01), lr=0.01, decoupled_weight_decay=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
        loader = torch.utils.data.DataLoader(small_data(), batch_size=8)
        self.parts = self.accelerator.prepare(model, optimizer, scheduler, loader)

    def train(self, epochs):
        model, optimizer, scheduler, loader = self.parts
        for _ in range(epochs):
            for x, y in loader:
                with self.accelerator.accumulate(model):
                    self.accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
        return weights(model)


@pytest.mark.parametrize("together", [1, 2])
def test_a_checkpoint_goes_on_exactly_and_would_not_without_the_state(together, tmp_path):
    torch.manual_seed(2)
    whole = Run(together).train(EPOCHS)
    torch.manual_seed(2)
    first = Run(together)
    first.train(HALF)
    first.accelerator.save_state(str(tmp_path))

    def second():
        run = Run(together)
        run.accelerator.load_state(str(tmp_path))
        return run.train(EPOCHS - HALF)

    assert torch.equal(second(), whole)
    lose_state(tmp_path / "optimizer.bin")
    assert not torch.equal(second(), whole)


def test_accumulated_gradients_are_one_step():
    run = Run(together=2)
    run.train(1)
    optimizer = run.parts[1].optimizer
    assert isinstance(optimizer, WADA)
    assert {int(state["step"]) for state in optimizer.state.values()} == {2}
