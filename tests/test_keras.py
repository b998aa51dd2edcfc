"""The Keras front end on each back end: what Keras asks of its own optimizers, and what its users count on.

Keras has one back end per process. So the checks, whose names begin with ``check``, run in a process for each: see
back_ends.py.
"""

import inspect
import json
import pickle

import back_ends
import keras
import numpy as np
import pytest
from keras import ops
from tables import NAMED, RULES, gradients

import wagmf.keras
from wagmf.arguments import Refused
from wagmf.keras import OGD, WADA, WAGMF, Adam, AMSGrad, Momentum, NosAdam, Padam
from wagmf.methods import METHODS
from wagmf.online import OnlineLearner
from wagmf.rule import Rule
from wagmf.weights import Custom

BACKEND = keras.backend.backend()


@pytest.mark.parametrize("name", [pytest.param(name, marks=back_ends.mark(name)) for name in back_ends.BACK_ENDS])
def test_keras_on(name, back_end):
    answer = back_end(name)
    assert answer.code == 0, answer.said
    assert " passed" in answer.said
    assert "skipped" not in answer.said


def named(name, lr=0.1, /, **options):
    return getattr(wagmf.keras, NAMED[name])(lr, **options)


def train(optimizer, x, rounds):
    for g in rounds:
        optimizer.apply([ops.convert_to_tensor(g)], [x])
    return ops.convert_to_numpy(x)


def model(dtype=None, seed=0):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Input((4,)), keras.layers.Dense(8, "tanh", dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    return keras.Sequential(layers)


X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")


def fit(some, epochs=1, **options):
    return some.fit(X, Y, epochs=epochs, batch_size=16, shuffle=False, verbose=0, **options).history["loss"]


def weights(some):
    return [ops.convert_to_numpy(value) for value in some.weights]


def equal(a, b):
    assert len(a) == len(b)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# ------------------------------------------------------------------ the mathematics


@pytest.mark.parametrize("name", RULES)
def check_every_rule_walks_as_the_oracle(name):
    g = np.concatenate([gradients(problem, T=12) for problem in ("noise", "mostly zero", "zero")], axis=1)
    g = g.astype("float32")
    learner = OnlineLearner(RULES[name], np.ones(g.shape[1]), lr=0.125)
    for g_t in g:
        learner.update(g_t.astype(np.float64))
    x = train(WAGMF(0.125, rule=RULES[name]), keras.Variable(np.ones(g.shape[1], "float32")), g)
    np.testing.assert_allclose(x, learner.predict(), rtol=2e-5, atol=2e-5)


def check_custom_weights():
    rule, g = Rule(Custom(lambda t: t * (t + 3))), gradients("noise", T=10).astype("float32")
    learner = OnlineLearner(rule, np.ones(5), lr=0.125)
    for g_t in g:
        learner.update(g_t.astype(np.float64))
    x = train(WAGMF(0.125, rule=rule), keras.Variable(np.ones(5, "float32")), g)
    np.testing.assert_allclose(x, learner.predict(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: Adam(0.1, eps=1e-12), lambda: keras.optimizers.Adam(0.1, epsilon=1e-12)),
        (lambda: Adam(0.1, eps=1e-12, weight_decay=0.1),
         lambda: keras.optimizers.AdamW(0.1, epsilon=1e-12, weight_decay=0.1)),
        (lambda: wagmf.keras.RMSProp(0.1, beta2=0.9, eps=0.0), lambda: keras.optimizers.RMSprop(0.1, epsilon=0.0)),
        (lambda: OGD(0.1), lambda: keras.optimizers.SGD(0.1)),
        (lambda: Momentum(0.1), lambda: keras.optimizers.SGD(0.01, momentum=0.9)),
    ],
)  # fmt: skip
def check_equals_keras(ours, theirs):
    rounds = gradients("noise", T=10).astype("float32")
    walks = [train(each(), keras.Variable(np.ones(5, "float32")), rounds) for each in (ours, theirs)]
    np.testing.assert_allclose(*walks, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("eps", [1e-7, 0.0])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", METHODS)
def check_zero_and_large_gradients_in_low_precision(name, dtype, eps):
    x = keras.Variable(np.ones(3), dtype=dtype)
    optimizer = named(name, eps=eps)
    for g in ([0, 0, 0], [0, 0, 0], [0, 0.5, 300]):
        optimizer.apply([ops.cast(np.array(g, "float32"), dtype)], [x])
    found = np.array(ops.convert_to_numpy(ops.cast(x, "float32")))
    assert np.all(np.isfinite(found))
    assert found[0] == 1
    assert found[1] < 1
    kept = [v for v in optimizer.variables if v.name.endswith(("_m", "_v", "_peak"))]
    assert all(v.dtype == "float32" for v in kept)


# ------------------------------------------------------------------ what Keras asks of its own


def saved_class(optimizer):
    """A configuration must survive JSON, and the class be found by the name that saved files hold."""
    config = json.loads(json.dumps(optimizer.get_config()))
    again = type(optimizer).from_config(dict(config))
    assert again.get_config() == config
    told = json.loads(json.dumps(keras.saving.serialize_keras_object(optimizer)))
    revived = keras.saving.deserialize_keras_object(told)
    assert type(revived) is type(optimizer)
    assert revived.get_config() == config
    assert set(dir(revived)) == set(dir(optimizer)) == set(dir(again))
    assert told["registered_name"] == f"wagmf>{type(optimizer).__name__}"
    return revived


@pytest.mark.parametrize("name", METHODS)
def check_class_serialisation(name):
    options = {"weight_decay": 0.1, "clipnorm": 1.0, "use_ema": True, "gradient_accumulation_steps": 2, "name": "mine"}
    assert saved_class(named(name, eps=1e-5, decay=0.25, **options)).rule.decay == 0.25
    assert saved_class(named(name)).rule == METHODS[name].rule


def check_serialisation_of_own_parameters_schedules_and_rules():
    assert saved_class(Padam(0.1, beta1=0.5, beta2=0.7, p2=6.0, debias=True)).rule.p2 == 6
    assert saved_class(NosAdam(0.1, eta=-0.3)).rule.weights.eta == -0.3
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    assert saved_class(WADA(schedule)).get_config()["learning_rate"]["class_name"] == "ExponentialDecay"
    assert saved_class(WAGMF(0.1, rule=RULES["wada, all"])).rule == RULES["wada, all"]
    with pytest.raises(Refused, match="a Custom weighting is a function and cannot be written down"):
        WAGMF(0.1, rule=Rule(Custom(lambda t: t))).get_config()


@pytest.mark.parametrize("name", ["wada", "amsgrad", "nosadam", "ogd"])
def check_a_saved_model_goes_on_bit_by_bit(name, tmp_path):
    """Of every kind of state: m and v; with a maximum; with a window; none."""
    some = model()
    some.compile(named(name, 0.01, clipnorm=1.0), loss="mse")
    fit(some, 2)
    some.save(tmp_path / "some.keras")
    again = keras.models.load_model(tmp_path / "some.keras")
    assert type(again.optimizer) is type(some.optimizer)
    equal([ops.convert_to_numpy(v) for v in again.optimizer.variables],
          [ops.convert_to_numpy(v) for v in some.optimizer.variables])  # fmt: skip
    fit(some, 2)
    fit(again, 2)
    equal(weights(again), weights(some))
    assert int(again.optimizer.iterations) == 16


@pytest.mark.parametrize(
    ("saved", "other"),
    [(Momentum, wagmf.keras.RMSPropNC), (WADA, wagmf.keras.WADAv4), (AMSGrad, Padam), (Adam, WADA),
     (keras.optimizers.Adam, Adam)],
)  # fmt: skip
def check_a_checkpoint_of_another_method_is_refused(saved, other, tmp_path):
    some, again = model(), model()
    some.compile(saved(0.01), loss="mse")
    some.optimizer.build(some.trainable_variables)
    some.save_weights(tmp_path / "some.weights.h5")
    again.compile(other(0.01), loss="mse")
    again.optimizer.build(again.trainable_variables)
    words = "this has no rule" if saved is keras.optimizers.Adam else r"(p1|p2|weights) .* there, .* here"
    with pytest.raises(ValueError, match=f"Invalid checkpoint: .*{words}"):
        again.load_weights(tmp_path / "some.weights.h5")


def check_empty_variables():
    x = keras.Variable(np.ones((0, 3), "float32"))
    assert train(WADA(0.1), x, [np.ones((0, 3), "float32")]).shape == (0, 3)


def check_weights_and_optimizer_can_be_saved_apart(tmp_path):
    some = model()
    some.compile(AMSGrad(0.01), loss="mse")
    fit(some)
    some.save_weights(tmp_path / "some.weights.h5")
    again = model(seed=1)
    again.compile(AMSGrad(0.01), loss="mse")
    again.optimizer.build(again.trainable_variables)
    again.load_weights(tmp_path / "some.weights.h5")
    fit(some)
    fit(again)
    equal(weights(again), weights(some))


@pytest.mark.parametrize("name", METHODS)
def check_pickling(name):
    optimizer = named(name, 0.25, beta1=0.5) if name == "wada" else named(name, 0.25)
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


def check_iterations_count_and_get_by_identifier():
    x, optimizer = keras.Variable(np.ones(2, "float32")), WADA(0.1)
    for t in range(3):
        assert int(optimizer.iterations) == t
        optimizer.apply([ops.ones(2)], [x])
    assert isinstance(keras.optimizers.get({"class_name": "wagmf>WADA", "config": {"learning_rate": 0.1}}), WADA)
    assert [WADA(0.1).name, wagmf.keras.WADAv3(0.1).name, WADA(0.1, name="mine").name] == ["wada", "wada_v3", "mine"]


def check_missing_gradients():
    x, y = keras.Variable(np.ones(2, "float32")), keras.Variable(np.ones(2, "float32"))
    optimizer = WADA(0.1)
    with pytest.raises(ValueError, match="No gradients"):
        optimizer.apply([None, None], [x, y])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([ops.ones(2), None], [x, y])
    assert np.all(ops.convert_to_numpy(x) < 1)
    assert np.all(ops.convert_to_numpy(y) == 1)
    optimizer.apply([ops.ones(2), ops.ones(2)], [x, y])
    assert np.all(ops.convert_to_numpy(y) < 1)


@pytest.mark.parametrize(
    ("option", "expected"),
    [({"clipnorm": 1.0}, [0.6, 0.8]), ({"clipvalue": 3.5}, [3.0, 3.5]), ({"global_clipnorm": 2.5}, [1.5, 2.0])],
)
def check_clipping(option, expected):
    x = train(OGD(1.0, **option), keras.Variable(np.zeros(2, "float32")), [np.array([3.0, 4.0], "float32")])
    np.testing.assert_allclose(-x, expected, rtol=1e-6)


def check_weight_decay_and_exclusions():
    x, y, z = (keras.Variable(np.full(2, 2.0, "float32"), name=name) for name in ("kernel", "exclude", "bias"))
    optimizer = OGD(1.0, weight_decay=0.25)
    optimizer.exclude_from_weight_decay(var_list=[y], var_names=["bias"])
    optimizer.apply([ops.zeros(2)] * 3, [x, y, z])
    np.testing.assert_allclose([ops.convert_to_numpy(v)[0] for v in (x, y, z)], [1.5, 2.0, 2.0])


def check_ema():
    x = keras.Variable(np.zeros(1, "float32"))
    optimizer = OGD(1.0, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    seen = [float(train(optimizer, x, [-np.ones(1, "float32")])[0]) for _ in range(3)]
    assert seen == [1.0, 2.0, 2.25]  # averages 1, 1.5, 2.25, of which the third is written back


def check_accumulated_gradients():
    g = gradients("noise", T=8).astype("float32")
    x = train(NosAdam(0.125, gradient_accumulation_steps=4), keras.Variable(np.ones(5, "float32")), g)
    means = [g[:4].mean(0), g[4:].mean(0)]
    np.testing.assert_allclose(x, train(NosAdam(0.125), keras.Variable(np.ones(5, "float32")), means), rtol=1e-5)


def check_static_loss_scale():
    x = train(OGD(1.0, loss_scale_factor=8.0), keras.Variable(np.zeros(2, "float32")), [np.full(2, 8.0, "float32")])
    np.testing.assert_allclose(x, -1.0)


def scaled_steps(optimizer, x, rounds):
    """Steps of a LossScaleOptimizer; on JAX it has only stateless ones."""
    if BACKEND != "jax":
        return train(optimizer, x, rounds)
    optimizer.build([x])
    for g in rounds:
        values, state = optimizer.stateless_apply([v.value for v in optimizer.variables], [g], [x.value])
        for variable, value in zip([x, *optimizer.variables], [*values, *state], strict=True):
            variable.assign(value)
    return ops.convert_to_numpy(x)


def check_dynamic_loss_scale():
    inner = AMSGrad(0.5)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    x = keras.Variable(np.ones(2, "float32"))
    after = np.array(scaled_steps(optimizer, x, [np.full(2, 4.0, "float32")]))
    np.testing.assert_allclose(after, train(AMSGrad(0.5), keras.Variable(np.ones(2, "float32")), [np.ones(2, "f4")]))
    equal([scaled_steps(optimizer, x, [np.array([np.inf, 1.0], "float32")])], [after])
    assert int(inner.iterations) == 1


def check_mixed_precision_fits():
    try:
        keras.config.set_dtype_policy("mixed_float16")
        some = model()
    finally:
        keras.config.set_dtype_policy("float32")
    some.compile(WADA(0.1), loss="mse")
    losses = fit(some, 8)
    assert isinstance(some.optimizer, keras.optimizers.LossScaleOptimizer)
    assert losses[-1] < losses[0]


def check_pure_bfloat16_fits():
    some = model("bfloat16")
    some.compile(WADA(0.1), loss="mse")
    losses = fit(some, 8)
    assert losses[-1] < losses[0]
    assert {v.dtype for v in some.optimizer.variables if v.name.endswith(("_m", "_v"))} == {"float32"}


def check_schedules_and_callbacks():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.25])
    x = train(OGD(schedule), keras.Variable(np.zeros(1, "float32")), [np.ones(1, "float32")] * 3)
    np.testing.assert_allclose(x, -(1 + 1 + 0.25))
    some = model()
    some.compile(WADA(lambda: 0.01), loss="mse")
    fit(some)
    some.compile(WADA(0.01), loss="mse")
    fit(some, 2, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr / 2)])
    assert float(some.optimizer.learning_rate) == pytest.approx(0.0025)


def check_constraints_are_applied():
    x = keras.Variable(np.ones(2, "float32"))
    x.constraint = keras.constraints.NonNeg()
    assert np.all(train(OGD(5.0), x, [np.ones(2, "float32")]) == 0)


@pytest.mark.parametrize("jit_compile", [True, False])
def check_compiled_and_uncompiled_fits_agree(jit_compile):
    if BACKEND == "torch" and jit_compile:
        return check_torch_compile_traces_the_rule()
    found = []
    for eager in (False, True):
        some = model()
        some.compile(NosAdam(0.01), loss="mse", run_eagerly=eager, jit_compile=jit_compile and not eager)
        fit(some, 2)
        found.append(weights(some))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def check_a_fit_is_what_apply_does():
    """fit goes other ways than apply: graphs, stateless scopes, distribution. The steps are the same."""
    some, g = model(), None
    x = [np.array(w) for w in weights(some)]
    some.compile(AMSGrad(0.01), loss="mse")
    fit(some, 1)
    learner = OnlineLearner(METHODS["amsgrad"].rule, np.concatenate([w.ravel() for w in x]), lr=0.01)
    for start in range(0, 64, 16):
        W1, b1, W2, b2 = np.split(learner.predict(), np.cumsum([w.size for w in x])[:-1])
        W1, W2 = W1.reshape(4, 8), W2.reshape(8, 1)
        inputs, targets = X[start : start + 16].astype(np.float64), Y[start : start + 16]
        hidden = np.tanh(inputs @ W1 + b1)
        error = 2 * (hidden @ W2 + b2 - targets) / 16
        back = (error @ W2.T) * (1 - hidden**2)
        g = np.concatenate([(inputs.T @ back).ravel(), back.sum(0), (hidden.T @ error).ravel(), error.sum(0)])
        learner.update(g)
    np.testing.assert_allclose(
        np.concatenate([w.ravel() for w in weights(some)]), learner.predict(), rtol=2e-3, atol=2e-5
    )


# ------------------------------------------------------------------ what only one back end has


if BACKEND == "tensorflow":
    import tensorflow as tf

    devices = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(devices[0], [tf.config.LogicalDeviceConfiguration()] * 2)

    @pytest.mark.parametrize("name", ["amsgrad", "nosadam"])
    def check_two_replicas_step_as_one(name):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            split = model()
            split.compile(named(name, 0.01), loss="mse", jit_compile=False)
        whole = model()
        whole.compile(named(name, 0.01), loss="mse")
        fit(split, 2)
        fit(whole, 2)
        for a, b in zip(weights(split), weights(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    def check_sparse_gradients_of_embeddings():
        table = keras.Variable(np.ones((4, 2), "float32"))
        slices = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([1, 1]), tf.constant([4, 2]))
        optimizer = WADA(0.1)
        optimizer.apply([slices], [table])
        dense = keras.Variable(np.ones((4, 2), "float32"))
        WADA(0.1).apply([tf.constant([[0.0, 0], [2, 2], [0, 0], [0, 0]])], [dense])
        equal([ops.convert_to_numpy(table)], [ops.convert_to_numpy(dense)])

    def check_tf_checkpoints(tmp_path):
        x, optimizer = keras.Variable(np.ones(2, "float32")), AMSGrad(0.1)
        train(optimizer, x, [np.ones(2, "float32")])
        path = tf.train.Checkpoint(x=x.value, optimizer=optimizer).save(str(tmp_path / "c"))
        before = [ops.convert_to_numpy(v) for v in optimizer.variables]
        train(optimizer, x, [np.ones(2, "float32")])
        tf.train.Checkpoint(x=x.value, optimizer=optimizer).restore(path)
        equal([ops.convert_to_numpy(v) for v in optimizer.variables], before)


if BACKEND == "jax":
    import jax

    @pytest.mark.parametrize("name", ["amsgrad", "nosadam"])
    def check_two_devices_step_as_one(name):
        assert len(jax.devices()) == 2
        whole = model()
        whole.compile(named(name, 0.01), loss="mse")
        fit(whole, 2)
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=jax.devices()))
        try:
            split = model()
            split.compile(named(name, 0.01), loss="mse")
            fit(split, 2)
        finally:
            keras.distribution.set_distribution(None)
        for a, b in zip(weights(split), weights(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)

    def check_stateless_steps():
        x = keras.Variable(np.ones(2, "float32"))
        optimizer = NosAdam(0.125)
        optimizer.build([x])
        step = jax.jit(lambda state, g, x: optimizer.stateless_apply(state, [g], [x]))
        values, state = [x.value], [v.value for v in optimizer.variables]
        for _ in range(3):
            values, state = step(state, np.ones(2, "float32"), values[0])
        expected = train(NosAdam(0.125), keras.Variable(np.ones(2, "float32")), [np.ones(2, "float32")] * 3)
        np.testing.assert_allclose(values[0], expected, rtol=1e-6)


if BACKEND == "torch":
    import torch

    def check_the_kernels_of_torch_step():
        x, y = keras.Variable(np.ones(3, "float32")), keras.Variable(np.ones((2, 2), "float32"))
        z = keras.Variable(np.ones(2), dtype="bfloat16")
        optimizer = WADA(0.1)
        for _ in range(2):
            optimizer.apply([torch.ones(3), torch.ones(2, 2), torch.ones(2, dtype=torch.bfloat16)], [x, y, z])
        assert [path.name for path in optimizer._paths.values()] == ["fused", "fused"]
        optimizer.apply([torch.ones(3), torch.ones(2, 2).t(), torch.ones(2, dtype=torch.bfloat16)], [x, y, z])
        assert np.allclose(ops.convert_to_numpy(x)[0], ops.convert_to_numpy(y))
        optimizer.apply([torch.ones(3), torch.ones(2, 2), torch.ones(2, dtype=torch.bfloat16)], [x, y, z])
        assert {path.name for path in optimizer._paths.values()} == {"fused"}  # again

    def check_tables_are_not_kept_for_ever():
        variables = [keras.Variable(np.ones(1, "float32")) for _ in range(6)]
        optimizer = WADA(0.1)
        optimizer.build(variables)
        for subset in range(1, 64):
            some = [v for place, v in enumerate(variables) if subset >> place & 1]
            optimizer.apply([torch.ones(1)] * len(some), some)
        assert len(optimizer._paths) <= 17

    def check_sparse_gradients():
        x = keras.Variable(np.ones((3, 2), "float32"))
        WADA(0.1).apply([torch.ones(3, 2).to_sparse()], [x])
        assert np.all(ops.convert_to_numpy(x) < 1)

    def check_tensors_that_move_are_followed():
        x, optimizer = keras.Variable(np.ones(3, "float32")), WADA(0.1)
        train(optimizer, x, [np.ones(3, "float32")])
        x.value.data = x.value.data.clone()
        optimizer._kept["m"][0].value.data = torch.zeros(3)
        y, other = keras.Variable(np.ones(3, "float32")), WADA(0.1)
        train(other, y, [np.ones(3, "float32")])
        other._kept["m"][0].assign(np.zeros(3))
        equal([train(optimizer, x, [np.ones(3, "float32")])], [train(other, y, [np.ones(3, "float32")])])

    def check_torch_compile_traces_the_rule():
        found = []
        for compiled in (True, False):
            x, optimizer = keras.Variable(np.ones(3, "float32")), NosAdam(0.125)
            optimizer.build([x])

            def step(g, optimizer=optimizer, x=x):
                optimizer.apply([g], [x])

            step = torch.compile(step, backend="eager") if compiled else step
            for g in gradients("noise", T=3, d=3).astype("float32"):
                step(torch.from_numpy(g))
            found.append(ops.convert_to_numpy(x).copy())
        np.testing.assert_allclose(*found, rtol=1e-6)


# ------------------------------------------------------------------ what is refused


BAD = {
    "lr -1": (lambda: WADA(-1.0), "Invalid learning rate: -1.0 (lr must be a finite number >= 0)"),
    "lr nan": (lambda: WADA(float("nan")), "Invalid learning rate: nan"),
    "lr text": (lambda: WADA("0.1"), "Invalid learning rate: '0.1'"),
    "lr None": (lambda: WADA(None), "Invalid learning rate: None"),
    "beta1": (lambda: WADA(0.1, beta1=1.0), "Invalid beta1: 1.0 (beta1 must be a finite number >= 0 and < 1)"),
    "beta2": (lambda: Adam(0.1, beta2=0.0), "Invalid beta2: 0.0 (beta2 must be a finite number > 0 and < 1)"),
    "eta": (lambda: NosAdam(0.1, eta="big"), "Invalid eta: 'big'"),
    "p2": (lambda: Padam(0.1, p2=-1.0), "Invalid p2: -1.0"),
    "debias": (lambda: Adam(0.1, debias=1), "Invalid debias: 1 (debias must be True or False)"),
    "eps": (lambda: WADA(0.1, eps=-1.0), "Invalid eps: -1.0"),
    "decay": (lambda: WADA(0.1, decay=-1.0), "Invalid decay: -1.0"),
    "weight decay": (lambda: WADA(0.1, weight_decay=-0.1), "Invalid weight_decay: -0.1"),
    "rule": (lambda: WAGMF(0.1, rule="wada"), "Invalid rule: 'wada' (rule must be a wagmf.Rule"),
    "rule's key": (lambda: WAGMF(0.1, rule={"p3": 2}), "Invalid key of a rule: 'p3'"),
    "Keras's name": (lambda: WADA(0.1, beta_1=0.9), "Invalid argument: 'beta_1' (did you mean 'beta1'?"),
    "Keras's eps": (lambda: WADA(0.1, epsilon=0.9), "Invalid argument: 'epsilon' (did you mean 'eps'?"),
    "rule of a method": (lambda: WADA(0.1, rule=Rule()), "Invalid argument: 'rule'"),
    "integers": (
        lambda: WADA(0.1).build([keras.Variable(np.ones(2), dtype="int32", trainable=False)]),
        f"only floating-point variables can be trained by Keras on {BACKEND}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def check_bad_calls_are_refused_by_name_and_value(name):
    call, words = BAD[name]
    with pytest.raises(Refused) as error:
        call()
    assert words in str(error.value)


@pytest.mark.parametrize("name", METHODS)
def check_classes_are_the_rows_of_the_table(name):
    row, cls = METHODS[name], getattr(wagmf.keras, NAMED[name])
    assert row.summary in cls.__doc__
    assert f"steps along   {row.phi}\n" in cls.__doc__
    assert f"divided by    {row.psi}\n" in cls.__doc__
    assert row.reference in cls.__doc__
    table = {**vars(row.rule), "beta2": getattr(row.rule.weights, "beta", None)}
    table["eta"] = getattr(row.rule.weights, "eta", None)
    for argument in inspect.signature(cls.__init__).parameters.values():
        if argument.name in table:
            assert argument.default == table[argument.name]
