"""Optuna: a step size is found, and the best trial is trained on from the checkpoint that it left."""

import optuna
import torch
from halves import lose_state, small_data, small_model, weights
from optuna.artifacts import FileSystemArtifactStore, download_artifact, upload_artifact

from wagmf.torch import WADA

STEPS, HALF = 20, 10


def begin(lr):
    model = small_model()
    return model, WADA(model.parameters(), lr=lr)


def go_on(model, optimizer, steps):
    x, y = small_data().tensors
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def tuned(folder):
    """A study of the step size in half of the steps; every trial leaves its checkpoint."""
    store = FileSystemArtifactStore(folder)

    def objective(trial):
        model, optimizer = begin(trial.suggest_float("lr", 1e-4, 10.0, log=True))
        loss = go_on(model, optimizer, HALF)
        file = folder / f"{trial.number}.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        uploaded = upload_artifact(artifact_store=store, file_path=str(file), study_or_trial=trial)
        trial.set_user_attr("checkpoint", uploaded)
        return loss

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=8)
    return study, store


def trained_on(trial, file):
    model, optimizer = begin(trial.params["lr"])
    saved = torch.load(file, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    go_on(model, optimizer, STEPS - HALF)
    return weights(model)


def test_the_best_trial_goes_on_exactly_and_would_not_without_the_state(tmp_path):
    study, store = tuned(tmp_path)
    best, file = study.best_trial, tmp_path / "best.pt"
    uploaded = best.user_attrs["checkpoint"]
    download_artifact(artifact_store=store, artifact_id=uploaded, file_path=str(file))
    model, optimizer = begin(best.params["lr"])
    go_on(model, optimizer, STEPS)
    assert torch.equal(trained_on(best, file), weights(model))
    lose_state(file, "optimizer")
    assert not torch.equal(trained_on(best, file), weights(model))


def test_the_step_size_is_what_is_tuned(tmp_path):
    study, _ = tuned(tmp_path)
    losses = {trial.params["lr"]: trial.value for trial in study.trials}
    assert len(set(losses.values())) == len(losses) == 8
    assert min(losses) < study.best_params["lr"] < max(losses), "too small and too large ones are worse"
    assert go_on(*begin(study.best_params["lr"]), HALF) == study.best_value
