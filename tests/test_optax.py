"""The optax front end: what optax asks of its own optimizers, and what its users put together with them."""

import contextlib
import inspect
import logging
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tables import RULES, gradients

import wagmf.optax as ours
from wagmf.arguments import Refused
from wagmf.feasible import Ball, Box, HalfSpace, L1Ball, NonNegative, Simplex
from wagmf.methods import METHODS, method
from wagmf.online import OnlineLearner
from wagmf.rule import Rule
from wagmf.weights import Custom, Exponential

# Step sizes with which a method comes to the bottom of a parabola, and of Rosenbrock's valley. Three are not made for
# the valley: signSGD needs ever smaller steps, and the SC methods, whose steps shrink as 1/t, a strongly convex loss.
PARABOLA = dict.fromkeys(METHODS, 0.1) | {"adagrad": 1.0, "sc_adagrad": 24.0, "sc_rmsprop": 24.0, "signsgd": 0.01}
VALLEY = dict.fromkeys(METHODS, 0.01) | {"adagrad": 0.1, "rmsprop": 0.003, "rmsprop_nc": 0.003, "ogd": 0.0005}
for unfit in ("signsgd", "sc_adagrad", "sc_rmsprop"):
    del VALLEY[unfit]


@pytest.fixture(autouse=True)
def float32_by_default():
    """As most people have it, also where another test's module has asked for float64."""
    with jax.enable_x64(False):
        yield


def named(name, lr=0.1, **options):
    return getattr(ours, name)(lr, **options)


def tree_close(a, b, rtol=1e-6, atol=1e-7):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def train(optimizer, x, rounds, jit=True):
    """The parameters after steps along these gradients."""

    def step(x, state, g):
        updates, state = optimizer.update(g, state, x)
        return optax.apply_updates(x, updates), state

    state = optimizer.init(x)
    step = jax.jit(step) if jit else step
    for g in rounds:
        x, state = step(x, state, g)
    return x, state


@contextlib.contextmanager
def compilations():
    """The log of what jax compiles meanwhile."""
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with jax.log_compiles():
            yield told
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# ------------------------------------------------------------------ the mathematics


@pytest.mark.parametrize("name", RULES)
def test_every_rule_walks_as_the_oracle(name):
    with jax.enable_x64(True):
        g = np.concatenate([gradients(problem, T=30) for problem in ("noise", "tiny", "huge", "mostly zero")], axis=1)
        learner = OnlineLearner(RULES[name], np.ones(g.shape[1]), lr=0.1)
        for g_t in g:
            learner.update(g_t)
        x, _ = train(ours.wagmf(0.1, RULES[name]), jnp.ones(g.shape[1]), list(map(jnp.asarray, g)))
        expected = learner.predict()
        np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


def test_custom_weights():
    with jax.enable_x64(True):
        rule = Rule(Custom(lambda t: t * (t + 3)))
        learner = OnlineLearner(rule, np.ones(3), lr=0.1)
        g = gradients("noise", T=20, d=3)
        for g_t in g:
            learner.update(g_t)
        x, _ = train(ours.wagmf(0.1, rule), jnp.ones(3), list(map(jnp.asarray, g)))
        np.testing.assert_allclose(x, learner.predict(), rtol=1e-12)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda: ours.adam(0.1, eps=1e-8), lambda: optax.adam(0.1)),
        (lambda: ours.nadam(0.1, eps=1e-8), lambda: optax.nadam(0.1)),
        (lambda: ours.adam(0.1, eps=1e-8, weight_decay=0.3), lambda: optax.adamw(0.1, weight_decay=0.3)),
        (lambda: ours.rmsprop(0.1, beta2=0.9, eps=1e-8), lambda: optax.rmsprop(0.1, eps_in_sqrt=False)),
        (lambda: ours.signsgd(0.1, eps=0.0), lambda: optax.sign_sgd(0.1)),
        (lambda: ours.ogd(0.1), lambda: optax.sgd(0.1)),
        (lambda: ours.momentum(0.1), lambda: optax.sgd(0.01, momentum=0.9)),
    ],
)
def test_equals_optax(mine, theirs):
    with jax.enable_x64(True):
        rounds = [jnp.asarray(g) for g in gradients("noise", T=30)]
        tree_close(train(mine(), jnp.ones(5), rounds)[0], train(theirs(), jnp.ones(5), rounds)[0], rtol=1e-12)


def test_long_windows_stay_exact_in_float32():
    """With g = 1 the average is 1 for ever; a window carried in float32 would drift away from (t + 1)/2."""
    steps = ours.scale_by_wagmf(method("wada").rule)
    x = jnp.zeros(1)
    state = steps.init(x)
    state = jax.jit(lambda s: jax.lax.fori_loop(0, 200_000, lambda _, s: steps.update(x + 1, s)[1], s))(state)
    assert int(state.count) == 200_000
    np.testing.assert_allclose(state.v, 1.0, rtol=2e-5)


# ------------------------------------------------------------------ what optax asks of its own


def parabola(dtype):
    target = jnp.array([1.0, -1.0, 1.0], dtype) * (1 + 1j if jnp.iscomplexobj(dtype) else 1)
    return jnp.array([-1.0, 10.0, 1.0], dtype), target, lambda x: jnp.sum(jnp.abs(x - target) ** 2)


def rosenbrock(dtype):
    a = 1 + 1j if jnp.iscomplexobj(dtype) else 1.0
    start, target = jnp.zeros(2, dtype), jnp.array([a, a**2], dtype)
    return start, target, lambda x: jnp.abs(a - x[0]) ** 2 + 100 * jnp.abs(x[1] - x[0] ** 2) ** 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.complex64])
@pytest.mark.parametrize(
    ("name", "problem", "lr"),
    [
        *((name, parabola, lr) for name, lr in PARABOLA.items()),
        *((name, rosenbrock, lr) for name, lr in VALLEY.items()),
    ],
)
def test_comes_to_the_bottom(name, problem, lr, dtype):
    start, target, loss = problem(dtype)
    steps = 60_000 if name == "ogd" else 10_000
    schedule = optax.linear_schedule(lr, 0.0, steps) if name == "signsgd" else lr
    optimizer = named(name, schedule)

    @jax.jit
    def walk(x, state):
        def step(_, carry):
            x, state = carry
            g = jnp.conj(jax.grad(loss)(x))
            updates, state = optimizer.update(g, state, x)
            return optax.apply_updates(x, updates), state

        return jax.lax.fori_loop(0, steps, step, (x, state))

    x, _ = walk(start, optimizer.init(start))
    assert x.dtype == dtype
    np.testing.assert_allclose(x, target, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", METHODS)
def test_is_compiled_once(name):
    x = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    optimizer = named(name, optax.cosine_decay_schedule(0.1, 10))
    step = jax.jit(optimizer.update)
    state = jax.jit(optimizer.init)(x)
    _, state = step(x, state, x)
    with compilations() as told:
        _, state = step(x, state, x)
        assert told == []
        jax.jit(lambda z: z + 3)(jnp.ones(7))  # and a compilation would be seen
        assert told


@pytest.mark.parametrize("name", METHODS)
def test_takes_extra_arguments(name):
    optimizer, x = named(name), jnp.ones(2)
    optimizer.update(x, optimizer.init(x), x, value=1.0, something=2)


@pytest.mark.parametrize("name", METHODS)
def test_hyperparameters_can_be_injected(name):
    x, g = [-jnp.ones((2, 3)), jnp.ones((2, 5, 2))], [jnp.ones((2, 3)), -jnp.ones((2, 5, 2))]
    static = {"padam": "p2", "signsgd": "beta1"}.get(name, ())  # what decides which state is kept, or how to compute
    injected = optax.inject_hyperparams(getattr(ours, name), static_args=static)(learning_rate=0.1)
    plain, known = named(name), injected.init(x)
    expected, state = jax.jit(plain.update)(g, jax.jit(plain.init)(x), x)
    for init in (injected.init, jax.jit(injected.init)):
        updates, new = jax.jit(injected.update)(g, init(x), x)
        tree_close(updates, expected, rtol=1e-4)  # a beta2 in float32 makes a window of 1000 wrong by 1e-5
        tree_close(new.inner_state, state, rtol=1e-4)
    own = set(inspect.signature(getattr(ours, name)).parameters) & {"learning_rate", "beta1", "beta2", "eta"}
    assert own - {static} <= known.hyperparams.keys()


def test_injected_hyperparameters_count():
    optimizer = optax.inject_hyperparams(ours.adam)(learning_rate=0.1, beta1=0.5, beta2=0.7, eps=1e-3)
    x, g = jnp.ones(3), [jnp.asarray(g, jnp.float32) for g in gradients("noise", T=10, d=3)]
    plain = ours.adam(0.1, beta1=0.5, beta2=0.7, eps=1e-3)
    tree_close(train(optimizer, x, g)[0], train(plain, x, g)[0], rtol=1e-5)
    assert not np.allclose(train(optimizer, x, g)[0], train(ours.adam(0.1), x, g)[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", METHODS)
def test_updates_have_the_dtype_of_gradients_and_state_is_stable(name, dtype):
    """For which nothing need be compiled: jax knows shapes and dtypes before."""
    optimizer = named(name)

    def step(x):
        state = optimizer.init(x)
        updates, new = optimizer.update(x, state, x)
        # It refuses what differs in shape or dtype.
        return updates, state, jax.lax.cond(jnp.all(x > 0), lambda: state, lambda: new)

    updates, state, both = jax.eval_shape(step, jnp.array([1.0, 2.0], dtype))
    assert updates.dtype == dtype
    assert jax.tree.structure(both) == jax.tree.structure(state)
    kept = jax.tree.leaves([state[0].m, state[0].v, state[0].peak])
    assert all(leaf.dtype == jnp.float32 for leaf in kept)


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.complex128, jnp.float64])
def test_state_is_stable_in_other_dtypes(dtype):
    with jax.enable_x64(dtype != jnp.complex64):
        optimizer, x = ours.amsgrad(0.1), jnp.ones(2, dtype)
        state = optimizer.init(x)
        updates, new = jax.jit(optimizer.update)(x, state, x)
        assert updates.dtype == new[0].m.dtype == new[0].v.dtype == dtype
        jax.lax.cond(jnp.any(x == 0), lambda: state, lambda: new)


def test_state_dtype():
    state = ours.amsgrad(0.1, state_dtype=jnp.bfloat16).init({"w": jnp.ones(2), "z": jnp.ones(2, jnp.complex64)})[0]
    assert (state.m["w"].dtype, state.m["z"].dtype) == (jnp.bfloat16, jnp.complex64)
    assert state.v["w"].dtype == state.peak["w"].dtype == jnp.float32
    x, state = train(
        ours.adam(0.1, state_dtype="bfloat16"), jnp.ones(4), [jnp.ones(4)] * 1000 + [jnp.full(4, 10.0)] * 500
    )
    assert x.dtype == jnp.float32
    remembered = (1 - 0.999**500) / (1 - 0.999**1500)
    np.testing.assert_allclose(state[0].v, 1 + 99 * remembered, rtol=1e-3)  # in bfloat16 it would stall far below


def test_integer_gradients_and_python_numbers():
    x = {"a": 1.0, "n": jnp.ones(2)}
    optimizer = ours.adam(0.1)
    updates, _ = optimizer.update({"a": 2.0, "n": jnp.array([3, -3])}, optimizer.init(x), x)
    np.testing.assert_allclose(updates["n"], [-0.1, 0.1], rtol=1e-5)
    np.testing.assert_allclose(updates["a"], -0.1, rtol=1e-5)
    assert float(ours.projected({"a": 3.0}, Box(-1, 1))["a"]) == 1


def test_float32_parameters_stay_so_where_float64_is_enabled():
    with jax.enable_x64(True):
        x, state = train(ours.nosadam(0.1, decay=0.5), jnp.ones(2, jnp.float32), [jnp.ones(2, jnp.float32)] * 2)
        assert x.dtype == state[0].v.dtype == jnp.float32
        assert state[0].window.dtype == jnp.float64


@pytest.mark.parametrize("name", METHODS)
def test_state_is_a_tree_of_arrays(name):
    x = {"w": jnp.ones((3, 2)), "none": None, "b": jnp.zeros(2)}
    state = named(name, optax.constant_schedule(0.1)).init(x)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    tree_close(optax.tree_utils.tree_map_params(named(name, optax.constant_schedule(0.1)), lambda v: v, state), state)
    tree_close(pickle.loads(pickle.dumps(state)), state)


@pytest.mark.parametrize("eps", [1e-7, 1e-8, 0.0])
@pytest.mark.parametrize("name", METHODS)
def test_zero_gradients_give_no_nan(name, eps):
    """In every dtype, and compiled where it is hardest: where nothing is added to V."""

    def each(*values):
        return {dtype: jnp.array(values, dtype) for dtype in ("float16", "bfloat16", "float32")}

    rounds = [each(0, 0, 0)] * 3 + [each(0, 1, -1)]
    found, state = train(named(name, eps=eps), each(1, 1, 1), rounds, jit=eps == 0)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((found, state)))
    for dtype, x in found.items():
        assert x.dtype == dtype
        assert x[0] == 1
        assert x[1] < 1


def test_large_half_precision_gradients_do_not_overflow():
    x, _ = train(ours.wada_v4(0.1, eps=0.0), jnp.zeros(2, jnp.float16), [jnp.array([300.0, -300.0], jnp.float16)])
    np.testing.assert_allclose(x, [-0.01, 0.01], rtol=1e-2)  # |g|^4 = 8.1e9 is beyond float16; 0.1·(1 - β1)·g/|g|


# ------------------------------------------------------------------ what people put together


ROUNDS = [{"w": jnp.asarray(g[:3], jnp.float32), "b": jnp.asarray(g[3:], jnp.float32)} for g in gradients("noise", T=8)]
START = {"w": jnp.ones(3), "b": jnp.zeros(2)}


def test_jit_changes_nothing():
    tree_close(train(ours.wada(0.1), START, ROUNDS)[0], train(ours.wada(0.1), START, ROUNDS, jit=False)[0], rtol=1e-5)


def test_chain_with_clipping_and_schedules():
    optimizer = optax.chain(optax.clip_by_global_norm(0.1), ours.wada(optax.piecewise_constant_schedule(0.1, {4: 0.0})))
    before, _ = train(optimizer, START, ROUNDS[:4])
    after, _ = train(optimizer, START, ROUNDS)
    tree_close(after, before)


def test_masked_parameters_are_left_alone():
    optimizer = optax.masked(ours.wada(0.1), {"w": True, "b": False})
    x, state = train(optimizer, START, ROUNDS)
    tree_close(x["w"], train(ours.wada(0.1), START, ROUNDS)[0]["w"])
    tree_close(x["b"], START["b"] + sum(g["b"] for g in ROUNDS))  # optax hands these on as they are
    assert len(jax.tree.leaves(state.inner_state[0].m)) == 1


def test_multi_transform():
    label = {"w": "slow", "b": "fast"}
    split = getattr(optax, "partition", optax.multi_transform)
    x, _ = train(split({"slow": ours.wada(0.01), "fast": ours.adam(0.1)}, label), START, ROUNDS)
    tree_close(x["w"], train(ours.wada(0.01), START, ROUNDS)[0]["w"])
    tree_close(x["b"], train(ours.adam(0.1), START, ROUNDS)[0]["b"])


def test_apply_if_finite():
    optimizer = optax.apply_if_finite(ours.wada(0.1), 3)
    bad = {"w": jnp.array([1.0, jnp.inf, 1.0]), "b": jnp.zeros(2)}
    x, state = train(optimizer, START, [ROUNDS[0], bad, ROUNDS[1]])
    tree_close(x, train(ours.wada(0.1), START, ROUNDS[:2])[0])
    assert int(state.inner_state[0].count) == 2


def test_accumulated_gradients():
    optimizer = optax.MultiSteps(ours.wada(0.1), 4)
    x, _ = train(optimizer, START, ROUNDS)
    means = [jax.tree.map(lambda *g: sum(g) / 4, *ROUNDS[i : i + 4]) for i in (0, 4)]
    tree_close(x, train(ours.wada(0.1), START, means)[0], rtol=1e-5)


def test_l2_and_masked_decay_by_optax_parts():
    x, _ = train(optax.chain(optax.add_decayed_weights(0.1), ours.ogd(0.1)), START, ROUNDS[:1])
    tree_close(x, jax.tree.map(lambda p, g: p - 0.1 * (g + 0.1 * p), START, ROUNDS[0]))
    x, _ = train(
        ours.ogd(0.1, weight_decay=0.5, mask={"w": True, "b": False}),
        {"w": 1.0 + START["w"], "b": START["b"] + 1},
        ROUNDS[:1],
    )
    tree_close(x, {"w": 2 - 0.1 * (ROUNDS[0]["w"] + 1), "b": 1 - 0.1 * ROUNDS[0]["b"]})


@pytest.mark.parametrize("weight_decay", [0.5, lambda count: 0.5], ids=["number", "schedule"])
def test_decay_of_weights_follows_the_step_size(weight_decay):
    """α_t·λ, also where α_t = lr·t^-decay."""
    x, _ = train(ours.ogd(0.1, decay=0.5, weight_decay=weight_decay), jnp.ones(2), [jnp.zeros(2)] * 2)
    np.testing.assert_allclose(x, (1 - 0.05) * (1 - 0.05 / np.sqrt(2)), rtol=1e-6)


def test_vmap_over_replicas_and_their_step_sizes():
    def final(lr, x):
        return train(ours.wada(lr), x, [jnp.asarray(g, jnp.float32) for g in gradients("noise", T=4)], jit=False)[0]

    lrs, xs = jnp.array([0.1, 0.01]), jnp.stack([jnp.ones(5), jnp.zeros(5)])
    together = jax.vmap(final)(lrs, xs)
    for row, lr, x in zip(together, lrs, xs, strict=True):
        tree_close(row, final(float(lr), x), rtol=1e-5)


def test_scan():
    optimizer, stacked = ours.nosadam(0.1), jax.tree.map(lambda *g: jnp.stack(g), *ROUNDS)

    def step(carry, g):
        updates, state = optimizer.update(g, carry[1], carry[0])
        return (optax.apply_updates(carry[0], updates), state), None

    (x, _), _ = jax.jit(lambda c: jax.lax.scan(step, c, stacked))((START, optimizer.init(START)))
    tree_close(x, train(optimizer, START, ROUNDS)[0], rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_gradients_through_the_update(name):
    """Meta-gradients equal finite differences, and stay finite where a gradient is 0."""
    with jax.enable_x64(True):
        target = jnp.array([0.3, -0.2])

        def after(lr, scale):
            x, state = jnp.array([1.0, 2.0]), None
            optimizer = named(name, lr)
            state = optimizer.init(x)
            for _ in range(4):
                updates, state = optimizer.update(scale * (x - target), state, x)
                x = optax.apply_updates(x, updates)
            return jnp.sum(x**2)

        found = jax.grad(after, (0, 1))(0.05, 1.5)
        h = 1e-6
        slopes = (after(0.05 + h, 1.5) - after(0.05 - h, 1.5), after(0.05, 1.5 + h) - after(0.05, 1.5 - h))
        np.testing.assert_allclose(found, np.array(slopes) / (2 * h), rtol=1e-4, atol=1e-7)
        optimizer = named(name)
        x = jnp.zeros(2)
        through = jax.grad(lambda g: jnp.sum(optimizer.update(g, optimizer.init(x), x)[0]))(jnp.array([0.0, 1.0]))
        assert jnp.all(jnp.isfinite(through))


@pytest.mark.parametrize("far", [0.1, 3.0], ids=["inside", "outside"])
@pytest.mark.parametrize(
    "feasible", [Ball(1.0), Box(-1, 1), L1Ball(1.0), HalfSpace([1.0, 1.0], 1.0), Simplex()], ids=str
)
def test_gradients_through_the_projection(feasible, far):
    with jax.enable_x64(True):
        x, g = jnp.array([0.4, 0.6]) * far, jnp.array([-1.0, -2.0])

        def after(lr):
            optimizer = ours.wada(lr, feasible=feasible)
            return jnp.sum(optimizer.update(g, optimizer.init(x), x)[0] * jnp.array([1.0, 2.0]))

        h = 1e-6
        np.testing.assert_allclose(
            jax.grad(after)(0.1), (after(0.1 + h) - after(0.1 - h)) / (2 * h), rtol=1e-5, atol=1e-7
        )


def test_buffers_can_be_donated():
    optimizer = ours.amsgrad(0.1)

    def step(x, state, g):
        updates, state = optimizer.update(g, state, x)
        return optax.apply_updates(x, updates), state

    x = jax.tree.map(jnp.copy, START)
    state = optimizer.init(x)
    donating = jax.jit(step, donate_argnums=(0, 1))
    for g in ROUNDS:
        old = jax.tree.leaves((x, state))
        x, state = donating(x, state, g)
        assert all(leaf.is_deleted() for leaf in old)
    tree_close(x, train(ours.amsgrad(0.1), START, ROUNDS)[0])


def test_missing_leaves():
    x = {"w": jnp.ones(2), "frozen": None}
    optimizer = ours.wada(0.1)
    updates, _ = optimizer.update({"w": jnp.ones(2), "frozen": None}, optimizer.init(x), x)
    assert updates["frozen"] is None
    x = {"w": jnp.ones(2), "late": jnp.ones(2)}
    state = optimizer.init(x)
    updates, new = optimizer.update({"w": jnp.ones(2), "late": None}, state, x)
    assert updates["late"] is None
    tree_close(new[0].v["late"], state[0].v["late"])
    assert float(new[0].v["w"][0]) == 1


def test_complex_numbers_are_pairs():
    g = gradients("noise", T=6, d=4).astype(np.float32)
    pairs, _ = train(ours.amsgrad(0.1), jnp.ones(4), list(map(jnp.asarray, g)))
    complexes, _ = train(ours.amsgrad(0.1), jnp.ones(2) * (1 + 1j), [jnp.asarray(r[:2] + 1j * r[2:]) for r in g])
    np.testing.assert_allclose(np.concatenate([complexes.real, complexes.imag]), pairs, rtol=1e-6)


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
def test_sharding_is_kept(axis_type):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        sharding = NamedSharding(mesh, P("x"))
        x = jax.device_put(jnp.ones(4), sharding)
        optimizer = ours.amsgrad(0.1)
        state = optimizer.init(x)
        updates, new = jax.jit(optimizer.update)(x, state, x)
        for leaf in (state[0].m, state[0].v, state[0].peak, new[0].m, new[0].v, new[0].peak, updates):
            assert leaf.sharding.is_equivalent_to(sharding, 1)
            assert not leaf.sharding.is_fully_replicated
            assert jax.typeof(leaf).sharding.spec == jax.typeof(x).sharding.spec


def test_shapes_without_values():
    shapes = jax.eval_shape(ours.amsgrad(0.1).init, {"w": jax.ShapeDtypeStruct((3,), jnp.bfloat16)})
    assert shapes[0].v["w"].dtype == jnp.float32


# ------------------------------------------------------------------ feasible sets


@pytest.mark.parametrize("feasible", [Box(-0.1, 0.2), NonNegative(), Ball(0.5), Simplex()], ids=str)
@pytest.mark.parametrize("name", ["wada", "amsgrad", "momentum", "nosadam"])
def test_projected_as_the_oracle(name, feasible):
    with jax.enable_x64(True):
        rule, start = method(name).rule, feasible.project(np.full(4, 0.25))
        learner = OnlineLearner(rule, start, lr=0.3, feasible=feasible)
        g = gradients("noise", T=20, d=4)
        for g_t in g:
            learner.update(g_t)
        x, _ = train(named(name, 0.3, feasible=feasible), jnp.asarray(start), list(map(jnp.asarray, g)))
        np.testing.assert_allclose(x, learner.predict(), rtol=1e-12, atol=1e-13)
        assert feasible.contains(ours.projected(x, feasible), tolerance=0.0 if isinstance(feasible, Box) else 1e-15)


def test_a_set_for_each_parameter():
    sets = {"w": Box(0.9, 1.1), "b": None}
    x, _ = train(ours.wada(1.0, feasible=sets), START, ROUNDS)
    assert bool(jnp.all((ours.projected(x, sets)["w"] >= 0.9) & (x["w"] <= 1.1 + 1e-6)))
    tree_close(x["b"], train(ours.wada(1.0), START, ROUNDS)[0]["b"])


def test_sets_around_a_masked_optimizer():
    optimizer = ours.project_in(Box(-0.1, 0.1), optax.masked(ours.wada(1.0), {"w": True, "b": False}), Rule())
    updates, _ = optimizer.update(ROUNDS[0], optimizer.init(START), START)
    assert float(jnp.max(jnp.abs(START["w"] + updates["w"]))) <= 0.1 + 1e-6
    tree_close(updates["b"], ROUNDS[0]["b"])  # no step of ours, so no V of ours


def test_complex_parameters_in_a_set():
    x, _ = train(ours.wada(1.0, feasible=Ball(0.1)), jnp.zeros(2, jnp.complex64), [jnp.array([1 + 1j, -2j])] * 3)
    assert float(jnp.linalg.norm(x)) <= 0.1 * (1 + 1e-6)
    with pytest.raises(Refused, match=r"Invalid feasible: Ball\(.*for complex parameters only sets that hold for the"):
        ours.projected(jnp.ones((2, 2)) * 1j, Ball(1.0, axis=1))
    y = ours.projected(jnp.array([3 + 4j]), Ball(1.0))
    np.testing.assert_allclose(y, [0.6 + 0.8j], rtol=1e-6)


# ------------------------------------------------------------------ what is refused


BAD = {
    "lr -1": (lambda: ours.wada(-1.0), "Invalid learning rate: -1.0 (lr must be a finite number >= 0)"),
    "lr nan": (lambda: ours.wada(float("nan")), "Invalid learning rate: nan"),
    "lr text": (lambda: ours.wada("0.1"), "Invalid learning rate: '0.1'"),
    "lr None": (lambda: ours.wada(None), "Invalid learning rate: None"),
    "lr array": (lambda: ours.wada(jnp.array(-0.5)), "Invalid learning rate: Array(-0.5"),
    "beta1 1": (lambda: ours.wada(0.1, beta1=1.0), "Invalid beta1: 1.0 (beta1 must be a finite number >= 0 and < 1)"),
    "beta1 array": (lambda: ours.wada(0.1, beta1=jnp.array(1.5)), "Invalid beta1: Array(1.5"),
    "beta2 0": (lambda: ours.adam(0.1, beta2=0.0), "Invalid beta2: 0.0 (beta2 must be a finite number > 0 and < 1)"),
    "eta": (lambda: ours.nosadam(0.1, eta=float("inf")), "Invalid eta: inf"),
    "p2": (lambda: ours.padam(0.1, p2=0.0), "Invalid p2: 0.0"),
    "debias": (lambda: ours.adam(0.1, debias=1), "Invalid debias: 1 (debias must be True or False)"),
    "eps": (lambda: ours.wada(0.1, eps=-1e-8), "Invalid eps: -1e-08"),
    "decay": (lambda: ours.wada(0.1, decay=-1.0), "Invalid decay: -1.0"),
    "weight decay": (lambda: ours.wada(0.1, weight_decay=-0.1), "Invalid weight_decay: -0.1"),
    "lr flag": (lambda: ours.wada(jnp.array(True)), "Invalid learning rate: Array(True"),
    "lr whole": (lambda: ours.wada(jnp.array(1)), "an array for lr must be floating-point"),
    "rule": (lambda: ours.wagmf(0.1, "wada"), "Invalid rule: 'wada' (rule must be a wagmf.Rule"),
    "state dtype": (lambda: ours.wada(0.1, state_dtype="int8"), "Invalid state_dtype: 'int8'"),
    "no dtype": (lambda: ours.wada(0.1, state_dtype="half-ish"), "Invalid state_dtype: 'half-ish'"),
    "set": (lambda: ours.wada(0.1, feasible=3), "Invalid feasible: 3 (feasible must be one of wagmf.feasible"),
    "sets": (lambda: ours.projected(jnp.ones(1), {"w": "box"}), "Invalid feasible: 'box'"),
    "no V": (lambda: step_once(ours.project_in(Box(-1, 1), optax.sgd(0.1), Rule())), "Invalid optimizer: 'one with 0"),
    "other rule": (
        lambda: step_once(ours.project_in(Box(-1, 1), ours.amsgrad(0.1), Rule())),
        "it must be the rule of the optimizer",
    ),
    "no momentum": (
        lambda: step_once(ours.project_in(Box(-1, 1), ours.ogd(0.1), Rule())),
        "it must be the rule of the optimizer",
    ),
    "no params": (lambda: step_once(ours.wada(0.1, feasible=Box(-1, 1)), params=None), "Invalid params: None"),
    "traced p2": (
        lambda: step_once(optax.inject_hyperparams(ours.padam)(0.1)),
        'with inject_hyperparams name it in "static_args"',
    ),
}  # fmt: skip


def step_once(optimizer, params=0):
    x = jnp.ones(2)
    jax.jit(lambda g, s: optimizer.update(g, s, None if params is None else x))(x, optimizer.init(x))


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_refused_by_name_and_value(name):
    call, words = BAD[name]
    with pytest.raises(Refused) as error:
        call()
    assert words in str(error.value)


def test_unknown_arguments_raise():
    with pytest.raises(TypeError, match="unexpected keyword argument 'b1'"):
        ours.wada(0.1, b1=0.9)


# ------------------------------------------------------------------ signatures


@pytest.mark.parametrize("name", METHODS)
def test_functions_are_the_rows_of_the_table(name):
    row, function = METHODS[name], getattr(ours, name)
    assert row.summary in function.__doc__
    assert f"steps along   {row.phi}\n" in function.__doc__
    assert f"divided by    {row.psi}\n" in function.__doc__
    assert row.reference in function.__doc__
    weights = row.rule.weights
    table = {**vars(row.rule), "beta2": getattr(weights, "beta", None), "eta": getattr(weights, "eta", None)}
    for argument in inspect.signature(function).parameters.values():
        if argument.name in table and argument.name != "decay":
            assert argument.default == table[argument.name]


def test_steady_windows_with_an_injected_beta2():
    optimizer = optax.inject_hyperparams(ours.rmsprop)(learning_rate=0.1, beta2=0.5)
    rounds = [jnp.asarray(g, jnp.float32) for g in gradients("noise", T=6)]
    rule = Rule(Exponential(0.5, steady=True), p2=2, beta1=0.0)
    tree_close(
        train(optimizer, jnp.ones(5), rounds)[0], train(ours.wagmf(0.1, rule), jnp.ones(5), rounds)[0], rtol=1e-5
    )
