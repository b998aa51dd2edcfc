"""Every check is able to fail: each planted error is caught by the tests that should catch it.

A mutant is a copy of the package with one piece of text replaced. The real tests run on it in a process of their own
and must fail, and not for a crash at import; on an unchanged copy they pass. A selection holds little more than the
test that is to fail.
"""

import shutil
import sys
from pathlib import Path

import forks
import pytest

import wagmf

SRC = Path(wagmf.__file__).parent

PAPER = "test_rule.py -k algorithm"
TORCH = "test_rule.py -k equals_torch_optim"
LOW = "test_rule.py -k zero_gradients"
SIGNS = "test_rule.py -k far_below"
ORACLE = "test_online.py -k walks_as_the_oracle[wada-"
LEARNER = "test_online.py -k norm_of"
SETTING = "test_online.py -k when_the_paper_says"
AHEAD = "test_rule.py -k next_momentum"
SETS = "test_feasible.py -k weights_count or general_solver"
SIMPLEX = "test_feasible.py -k test_projection and simplex and is_optimal"
CERTIFICATE = "test_theory.py -k certificates_of_the_table or constant_step_size"
POWERS = "test_theory.py -k growing_powers"
MAXIMUM = "test_theory.py -k running_maximum"
BOUND_2 = "test_theory.py -k theorem_2_holds or recorded"
BOUND_3 = "test_theory.py -k theorem_3_holds or recorded or formulas"
WEIGHTS = "test_weights.py -k raw_weights"
FOREACH = "test_torch.py -k every_option[wada-"
PEAK = "test_torch.py -k every_option[amsgrad-"
KERNELS = "test_convolutions.py -k check_a_convolution and (16-16-3 or 64-64)"
HALF = "test_torch.py -k mixed_dtypes or overflow"
TORCH_SETS = "test_torch.py -k feasible_sets"
MISSING = "test_torch.py -k missing_gradient"
SAVED = "test_torch.py -k saved_state or by_loading or another_rule"
ROUNDING = "test_torch.py -k on_average"
REPLICAS = "test_torch.py -k each_replica"
SCALED = "test_torch.py -k grad_scaler"
STALE = "test_torch.py -k nothing_remembered or every_way or in_the_place"
COMPILED = "test_torch.py -k compiled_steps_do_not and wada-aot"
SCALED_TOO = "test_torch.py -k compiled_steps_take and scaled"
OPTIM = "test_torch.py -k equals_torch_optim"
HOOKS = "test_torch.py -k closures_and_hooks or hooks_of_a_subclass or profiler"
GONE = "test_torch.py -k takes_the_place or foreach_looks or rounds_to_zero"
OLD = "test_torch.py -k old_state or hooks_see"
LAYOUTS = "test_torch.py -k laid_out_otherwise"
TOLD = "test_watching.py -k rule_did and (wada or amsgrad) or skip or counted_on or any_hook or each_group or lag"
UNMOVED = "test_watching.py -k changes_nothing and wada"
GROUPS = "test_groups.py -k rest_does_not"
CYCLED = "test_schedulers.py -k resuming_is_exact and OneCycleLR"
OPTAX = "test_optax.py -k every_rule_walks and (wada or nosadam)"
OPTAX_LOW = "test_optax.py -k large_half_precision or updates_have"
OPTAX_META = "test_optax.py -k gradients_through"
OPTAX_SETS = "test_optax.py -k projected_as_the_oracle and Ball"
OPTAX_DECAY = "test_optax.py -k decay_of_weights"
OPTAX_LATE = "test_optax.py -k injected_hyperparameters_count"
OPTAX_MISSING = "test_optax.py -k missing_leaves"
KERAS = "test_keras.py@jax -k check_every_rule_walks and (wada or nosadam)"
KERAS_SAVED = "test_keras.py@jax -k check_serialisation_of_own or check_a_checkpoint_of_another"
KERAS_LOW = "test_keras.py@jax -k check_zero_and_large and float16 and wada"
KERAS_TORCH = (
    "test_keras.py@torch -k check_every_rule_walks and nosadam or check_tensors_that_move or check_the_kernels"
)
DEVICE = "test_torch_triton.py -k check_the_optimizer_on_a_device[wada]"

MUTANTS = {
    "sign of the step": ("rule.py", "return lr * rule.rate_at(t)", "return -lr * rule.rate_at(t)", PAPER),
    "momentum swapped": ("rule.py", "beta1 * m + (1 - beta1) * g", "(1 - beta1) * m + beta1 * g", PAPER),
    "gradient power off by one": ("rule.py", "else abs(g), rule.p1)", "else abs(g), rule.p1 + 1)", PAPER),
    "no absolute value": ("rule.py", "else abs(g), rule.p1)", "else g, rule.p1)", PAPER),
    "root of p1, not p2": ("rule.py", "rule.p2, xp) + eps", "rule.p1, xp) + eps", PAPER),
    "eps inside the root": (
        "rule.py",
        "root(peak / u if rule.monotone else v, rule.p2, xp) + eps",
        "root((peak / u if rule.monotone else v) + eps, rule.p2, xp)",
        PAPER,
    ),
    "eps forgotten": ("rule.py", "rule.p2, xp) + eps", "rule.p2, xp)", PAPER),
    "raw sum, not mean": ("rule.py", "v + (now - v) / u", "v + now", PAPER),
    "window of the step before": (
        "rule.py",
        "        u = 1 + rule.weights.discount(t) * u\n        now =",
        "        old, u = max(u, 1.0), 1 + rule.weights.discount(t) * u\n"
        "        u, old = old, u\n        now =",
        PAPER,
    ),
    "maximum dropped": ("rule.py", "peak = xp.maximum(peak, u * v)", "peak = u * v", f"{PAPER} and amsgrad"),
    "maximum of v, not of u·v": ("rule.py", "xp.maximum(peak, u * v)", "xp.maximum(peak, v)", TORCH),
    "wrong decay": ("rule.py", "1 / t**self.decay", "1 / t ** (self.decay / 2)", f"{PAPER} and adagrad"),
    "t off by one in the rate": ("rule.py", "1 / t**self.decay", "1 / (t + 1) ** self.decay", f"{PAPER} and adagrad"),
    "t off by one in the correction": ("rule.py", "self.beta1**t *", "self.beta1 ** (t + 1) *", PAPER),
    "correction dropped": ("rule.py", "return 1 / seen, 0.0", "return 1.0, 0.0", TORCH),
    "lookahead dropped": ("rule.py", "a * m + b * g if rule.nesterov", "a * m if rule.nesterov", f"{PAPER} and nadam"),
    "latest by difference": ("rule.py", "now if isinstance(rule.weights, Latest) else v", "v", SIGNS),
    "linear discount off by one": ("weights.py", "return (t - 1) / t", "return t / (t + 1)", WEIGHTS),
    "polynomial discount upside down": ("weights.py", "(_past(t) / t) **", "(t / _past(t)) **", WEIGHTS),
    "steady window forgotten": ("weights.py", "if self.steady else 0.0", "if False else 0.0", f"{PAPER} and amsgrad"),
    "wada without its fourth root": ("methods.py", "Rule(Linear(), p1=2, p2=4)", "Rule(Linear(), p1=2, p2=2)", PAPER),
    "unweighted projection": ("online.py", "(self._x - new.step, new.V)", "(self._x - new.step)", LEARNER),
    "projection forgotten": ("online.py", "self.feasible.project(self._x - new.step, new.V)", "self._x - new.step",
                             LEARNER),
    "large gradients a step late": ("online.py", "t % 101 == 1", "t % 101 == 2", SETTING),
    "look-ahead with today's momentum": ("rule.py", "self.beta1_at(t + 1) / soon", "self.beta1_at(t) / soon", AHEAD),
    "0/0 where nothing has come": ("rule.py", "V = xp.where(V == 0, 1.0, V)", "pass", LOW),
    "simplex threshold unweighted": ("feasible.py", "- _largest((sums - total) / room, xp) / V",
                                     "- _largest((sums - total) / room, xp)", SETS),
    "simplex sorted the wrong way": ("feasible.py", "xp.argsort(-(V * y))", "xp.argsort(V * y)", SIMPLEX),
    "ball scaled, not projected": ("feasible.py", "            x = z / (1 + low / V)\n            return",
                                   "            x = z / (1 + excess)\n            return", SETS),
    "half-space pushed from inside": ("feasible.py", "xp.where(self._beyond(y, xp)[1] <= 0, y, ",
                                      "xp.where(False, y, ", SETS),
    "plane reached by the unweighted way": ("feasible.py", "beyond / xp.sum(a * a / V) * (a / V)",
                                            "beyond / xp.sum(a * a) * a", SETS),
    "simulated m swapped": ("online.py", "beta1[i] * m_t + (1 - beta1[i]) * g[i]",
                            "(1 - beta1[i]) * m_t + beta1[i] * g[i]", ORACLE),
    "simulated state lost between chunks": ("online.py", "    memory[:] = u_t, m_t, v_t, peak_t\n", "", ORACLE),
    "simulated regret against the wrong point": ("online.py", "(x[k] - _BEST)", "x[k]", ORACLE),
    "condition as printed": ("theory.py", "need = eta + 1 if eta >= 0", "need = 0 if eta >= 0", POWERS),
    "growing powers asked too little": ("theory.py", "need = eta + 1 if eta >= 0", "need = eta if eta >= 0", POWERS),
    "running maximum forgotten by the certificate": ("theory.py", "kept = max(1.0, rho * below_peak) * before / u",
                                                     "kept = before / u", MAXIMUM),
    "first violation one late": ("theory.py", "return t\n        before", "return t + 1\n        before", CERTIFICATE),
    "Theorem 3 without 1/α": ("theory.py", "D**2 / (2 * lr * kept) * V", "D**2 / (2 * kept) * V", BOUND_3),
    "Theorem 3 with Lemma 3 as printed": ("theory.py", "4 * lr * G / kept**3 * S", "lr * G / kept**3 * S", BOUND_3),
    "Theorem 2 without 1/α": ("theory.py", "lost = 1.0 if as_printed else lr", "lost = 1.0", BOUND_2),
    "torch: foreach momentum swapped": ("torch/foreach.py", "_torch._foreach_mul(g, 1 - beta1)",
                                        "_torch._foreach_mul(g, beta1)", FOREACH),
    "torch: foreach maximum dropped": ("torch/foreach.py", "_torch._foreach_maximum_(batch.peak, ",
                                       "_torch._foreach_copy_(batch.peak, ", PEAK),
    "torch: foreach eps forgotten": ("torch/foreach.py", "_torch._foreach_add_(V, batch.eps)", "pass", FOREACH),
    "torch: foreach decay coupled": ("torch/foreach.py", "1 - alpha * batch.weight_decay", "1 - batch.weight_decay",
                                     FOREACH),
    "torch: gradient kept in half precision": ("torch/plain.py", "y, g = x.to(exact), g.to(exact)", "y = x.to(exact)",
                                               HALF),
    "torch: projection unweighted": ("torch/plain.py", "project(y, new.V,", "project(y, 1.0,", TORCH_SETS),
    "torch: cycled momentum is another rule": ("torch/optimizer.py", '("beta1",) if "base_momentum" in group else ()',
                                               "()", CYCLED),
    "torch: momentum of the coming step is lost": ("torch/optimizer.py", 'group.get("momentum", each.beta1)',
                                                   "each.beta1", CYCLED),
    "torch: a look at V moves it": ("torch/watching.py", "return x.to(torch.promote_types(x.dtype, torch.float32))",
                                    "return x.to(torch.promote_types(x.dtype, torch.float32)).mul_(1.01)", UNMOVED),
    "torch: the update told is from after to after": ("torch/watching.py", "param.detach().clone() for param",
                                                      "param.detach() for param", TOLD),
    "torch: V without its maximum": ("torch/watching.py", 'for name in ("v", "peak")', 'for name in ("v", "v")', TOLD),
    "torch: clocks read at every step": ("torch/watching.py", "self._steps is None or self._is_due(self._steps + 1):",
                                         "True:", TOLD),
    "torch: parameters copied at every look": ("torch/watching.py", "            if self._is_due(self._steps + 1):",
                                               "            if True:", TOLD),
    "torch: steps counted from zero": ("torch/watching.py", "return int(max(clocks, default=0))", "return 0", TOLD),
    "torch: steps skipped before are counted": ("torch/watching.py", "self._steps = _latest(clocks)\n            if",
                                                "self._steps = self._steps or _latest(clocks)\n            if", TOLD),
    "torch: steps skipped when due are counted": ("torch/watching.py", "self._steps = _latest(clocks)\n        if",
                                                  "if", TOLD),
    "torch: a skipped step is told of": ("torch/watching.py", "if clocks == before.clocks or not", "if not", TOLD),
    "torch: a step that moves no clock on is told of": ("torch/watching.py", " or not self._is_due(self._steps):", ":",
                                                        TOLD),
    "torch: biases decay": ("torch/groups.py", "param.ndim <= 1 or ", "", GROUPS),
    "torch: what is frozen is grouped": ("torch/groups.py", "if param.requires_grad:", "if True:", GROUPS),
    "torch: exceptions forgotten": ("torch/groups.py", " or name in spared", "", GROUPS),
    "torch: a missing gradient counts": ("torch/teams.py", "[param.grad for param in self.params]",
                                         "[param.detach() * 0 if param.grad is None else param.grad "
                                         "for param in self.params]", MISSING),
    "torch: clocks shared with the checkpoint": ("torch/optimizer.py", "state[name].clone() for name in clocks",
                                                 "state[name] for name in clocks", SAVED),
    "torch: clocks go on although infinities were found": ("torch/optimizer.py", "if scaling[1].item():", "if False:",
                                                           SCALED),
    "torch: clocks on the device go on all the same": ("torch/teams.py", "if batch.found_inf is not None:", "if False:",
                                                       DEVICE),
    "torch: gradients unscaled by nobody": ("torch/teams.py", "_as_numbers(rows, group), *scaling)",
                                            "_as_numbers(rows, group))", SCALED),
    "torch: stale clocks": ("torch/teams.py", "self._set[0] == numbers.tobytes()", "self._set", STALE),
    "torch: replaced clocks forgotten": ("torch/teams.py", "if not (all(map(operator.is_, steps, self._steps))",
                                         "if False and not (all(map(operator.is_, steps, self._steps))",
                                         STALE),
    "torch: replaced state forgotten": ("torch/optimizer.py", "not all(map(operator.is_, self.state.values()",
                                        "all(map(operator.is_, self.state.values()", STALE),
    "torch: parameters that change places": ("torch/teams.py", "all(map(operator.is_, params, self.params))", "True",
                                             STALE),
    "torch: parameters with other clocks step along": ("torch/teams.py", "pairs.count(pairs[0]) == len(pairs)", "True",
                                                       STALE),
    "torch: never again by the kernel": ("torch/teams.py", "or not settled or odd:", "or odd:", LAYOUTS),
    "torch: scalars dropped by the compiler": ("torch/batch.py", "target.view(1).copy_(value.view(1))",
                                               "target.copy_(value)", COMPILED),
    "torch: compiled without scaling": ("torch/optimizer.py", "*kept], scaling[0])", "*kept])", SCALED_TOO),
    "torch: no ascent": ("torch/batch.py", 'group["maximize"], group', "False, group", OPTIM),
    "torch: another eps": ("torch/batch.py", 'group["eps"], group', "1e-7, group", OPTIM),
    "torch: nobody is missed": ("torch/batch.py", "if not self._gone and ", "if ", GONE),
    "torch: another path asked for in vain": ("torch/teams.py", '"foreach", "fused", "capturable"',
                                              '"foreach", "capturable"', STALE),
    "torch: state shared with what was loaded": ("torch/optimizer.py", "copy=True", "copy=False", OLD),
    "torch: what hooks did to a checkpoint undone": ("torch/optimizer.py", "self._before_loading(given, rule)",
                                                     "self._before_loading(state_dict, rule)", OLD),
    "torch: foreach takes what it cannot": ("torch/paths.py",
                                            "if reason is not None:\n        raise Unfit(reason)\n    return step_f",
                                            "return step_f", GONE),
    "torch: profiler not told": ("torch/optimizer.py", "_profiler._is_profiler_enabled or ", "", HOOKS),
    "torch: negative numbers rounded down": ("torch/batch.py", "((bits + noise)",
                                             "(torch.where(bits > 0, bits + noise, bits)", ROUNDING),
    "torch: eps that rounds to nothing": ("torch/foreach.py", "if torch.tensor(batch.eps, dtype=V[0].dtype).item()",
                                          "if batch.eps", GONE),
    "torch: the kernel's eps that rounds to nothing": ("torch/cpu.py", "floor = batch.eps if seen > 0 else 1.0",
                                                       "floor = batch.eps or 1.0", GONE),
    "torch: hooks not called": ("torch/optimizer.py", "or _watchers(self)", "or False", HOOKS),
    "torch: hooks called twice": ("torch/optimizer.py", "type(optimizer).step is WAGMF.step and bool(", "bool(", HOOKS),
    "torch: state cast by loading": ("torch/optimizer.py", "saved[name].detach().to(param.device, copy=True)",
                                     "state[name]", SAVED),
    "torch: another rule accepted": ("torch/optimizer.py", 'if rule == "same" and changed:', "if False:", SAVED),
    "torch: rounding always up": ("torch/batch.py", "torch.randint_like(bits, 0, 1 << 16)",
                                  "torch.full_like(bits, (1 << 16) - 1)", ROUNDING),
    "torch: one step size for all replicas": ("torch/batch.py", "lr.reshape(-1, *[1] * (param.ndim - 1)) if",
                                              "lr.mean() if", REPLICAS),
    "optax: time stands still": ("optax/transform.py", "jnp.asarray(optax.safe_increment(state.count))",
                                 "jnp.maximum(state.count, 1)", OPTAX),
    "optax: window not carried on": ("optax/transform.py", "* window).astype(window.dtype)",
                                     "* 0 + window).astype(window.dtype)", OPTAX),
    "optax: arithmetic in half precision": ("optax/transform.py", "g.astype(exact), m,",
                                            "g, m,", OPTAX_LOW),
    "optax: state in half precision": ("optax/transform.py", "else jnp.float32, jnp.float32)",
                                       "else jnp.float32, jnp.float16)", OPTAX_LOW),
    "optax: infinite slopes": ("optax/transform.py", "jnp.where(x > 0, dx / jnp.where(x > 0, 2 * y, 1), 0)",
                               "dx / (2 * y)", OPTAX_META),
    "optax: projection unweighted": ("optax/transform.py", "feasible.project(y.astype(exact), V, _XP)",
                                     "feasible.project(y.astype(exact), 1.0, _XP)", OPTAX_SETS),
    "optax: weights decay at the first rate": ("optax/transform.py", "if rule.decay:", "if False:", OPTAX_DECAY),
    "optax: late beta1 forgotten": ("optax/named.py", "rule = unchecked(rule, beta1=value)", "pass", OPTAX_LATE),
    "optax: missing leaves forgotten": ("optax/transform.py", "return (None, *state)",
                                        "return (None, None, None, None)", OPTAX_MISSING),
    "keras: time a step ahead": ("keras/optimizer.py", "self.iterations) + 1, dtype)", "self.iterations) + 2, dtype)",
                                 KERAS),
    "keras: window not carried on": ("keras/optimizer.py", "self._window.assign(1 + self.rule.weights.discount(t) * u)",
                                     "pass", KERAS),
    "keras: configuration without the method's own": ("keras/named.py", "return {**config, **self._own}",
                                                      "return config", KERAS_SAVED),
    "keras: any checkpoint": ("keras/optimizer.py", "        if changed:", "        if False:", KERAS_SAVED),
    "keras: state in half precision": ("keras/optimizer.py", "if _exact(dtype) == dtype:", "if True:", KERAS_LOW),
    "keras: window not carried on by the kernel": ("keras/torch.py", "optimizer._window.assign(u)", "pass",
                                                   KERAS_TORCH),
    "keras: never again by the kernel": ("keras/torch.py", 'and paths[places].name == "fused"', "", KERAS_TORCH),
    "lab: a damaged file is used": ("lab/data.py", "content, usedforsecurity=False).hexdigest() == checksum",
        "content, usedforsecurity=False).hexdigest()", "test_data.py -k damaged_file"),
    "lab: an archive of other files": ("lab/data.py", "if hashlib.sha256(content).hexdigest() != original.sha256",
        "if False", "test_data.py -k bad_archive and other"),
    "lab: a file written in place": ("lab/data.py", "write_whole(path, lambda new: new.write_bytes(content))",
        "path.write_bytes(content)", "test_data.py -k no_part_of_a_file"),
    "lab: tokens are standardised": ("lab/data.py", "        if self.tokens:\n            return self\n", "",
        "test_sequences.py -k tokens_stay"),
    "lab: a sequence counts by its first place": ("lab/engine.py", "y.shape[1:]).mean(3)", "y.shape[1:])[..., 0]",
        "test_sequences.py -k ordinary_loop"),
    "lab: normalised pixel by pixel": ("lab/data.py", "axes = (0, 2, 3) if x.ndim == 4 else (0,)",
        "axes = (0,)", "test_data.py -k normalised_by"),
    "lab: Holm one row short": ("lab/stats.py", "np.arange(len(order), 0, -1)), 1.0)",
        "np.arange(len(order) - 1, -1, -1)), 1.0)", "test_stats.py -k holm_is"),
    "lab: the extreme signs left out": ("lab/stats.py", "- slack)[:, None]).mean(axis=1)",
        "+ slack)[:, None]).mean(axis=1)", "test_stats.py -k exact_one"),
    "lab: no correction for few seeds": ("lab/stats.py", "_small_sample(2 * n - 2) * difference",
        "difference", "test_stats.py -k exact_correction"),
    "lab: diverged runs forgotten": ("lab/stats.py", '_in_order(grid, ["diverged", "bad", "lr"])',
        '_in_order(grid, ["bad", "lr"])', "test_stats.py -k outweighs"),
    "lab: diverging counts as better": ("lab/stats.py", "found & (ahead > 0) & (more <= 0)",
        "found & (ahead > 0)", "test_stats.py -k never_make_a_method_better"),
    "lab: means over survivors": ("lab/figures.py", "whole = np.isfinite(values).all(axis=0)",
        "whole = np.isfinite(values).any(axis=0)", "test_report.py -k first_seed_diverges"),
    "lab: worse looks better": ("lab/figures.py", "sign = -1.0 if better_is_lower(metric) else 1.0",
        "sign = 1.0", "test_report.py -k reads_by_rows"),
    "lab: better than some is best": ("lab/answers.py", "if len(beaten) == len(tried) - 1:",
        "if beaten:", "test_report.py -k better_than_some"),
    "lab: names are markup": ("lab/report.py", "autoescape=True", "autoescape=False", "test_report.py -k hostile"),
    "lab: half of the key unused": ("lab/noise.py", "x = np.uint32(x + second)",
        "x = np.uint32(x + first)", "test_noise.py -k formula_to_the_bit"),
    "lab: nothing mirrored": ("lab/batches.py", "to = width - 1 - w if flips[s, i] == 1 else w",
        "to = w", "test_batches.py -k padding_and_slicing"),
    "lab: seeds see each other's images": ("lab/models.py", "torch.eye(S, dtype=torch.bool",
        "torch.ones(S, S, dtype=torch.bool", "test_models.py -k one_product"),
    "lab: the last of equal pixels": ("lab/models.py", "(a >= b) | (a != a)",
        "(a > b) | (a != a)", "test_models.py -k first_of_equals"),
    "lab: biased running variance": ("lab/models.py", "v * (count / (count - 1))", "v", "test_models.py -k by_sums"),
    "kernels: a window one pixel off": ("lab/convolutions.py", "top, left = h * DOWN - AROUND, w * ACROSS - AROUND",
        "top, left = h * DOWN, w * ACROSS - AROUND", KERNELS),
    "kernels: replicas share what is theirs": ("lab/convolutions.py", "grad += r * images",
        "grad += 0 * images", KERNELS),
    "kernels: taps of one pixel of a cell": ("lab/convolutions.py", "for u in tl.static_range(WIDE):",
        "for u in tl.static_range(1):", KERNELS),
    "kernels: a gradient without its mean": ("lab/layers.py", "-a * first / count - b * m", "-b * m",
        "test_convolutions.py -k check_batch_normalisation"),
    "kernels: ReLU forgets what is not a number": ("lab/convolutions.py",
        "value = tl.where(value < 0, 0.0, value)  # what", "value = tl.where(value > 0, value, 0.0)  # what",
        "test_convolutions.py -k check_what_is_not"),
    "kernels: the shortcut comes to all pixels": ("lab/convolutions.py",
        "even = here & (row % 2 == 0) & (across % 2 == 0)", "even = here & (row % 2 == 0)",
        "test_convolutions.py -k check_the_gradient_by"),
    "kernels: pooling gives to the last": ("lab/layers.py", "upper, lower = (a >= b)",
        "upper, lower = (a > b)", "test_convolutions.py -k check_pooling"),
    "kernels: every program computes the first pixels": ("lab/convolutions.py",
        "cell = tile * BLOCK + tl.arange(0, BLOCK)", "cell = tl.arange(0, BLOCK)", KERNELS),
    "kernels: all replicas see the first seed's images": ("lab/convolutions.py", "x += r // SHARED * images",
        "x += (r if SHARED == 1 else 0) * images", "test_convolutions.py -k check_a_convolution_of_images and 1-1"),
    "kernels: sums of what was not rounded": ("lab/convolutions.py", "tl.where(here, rounded.to(tl.float32), 0.0)",
        "tl.where(here, value, 0.0)", "test_convolutions.py -k check_half_precision and convolution"),
    "kernels: the sums of the first programs alone": ("lab/layers.py", "for start in range(0, rows, BLOCK):",
        "for start in range(0, BLOCK, BLOCK):", "test_convolutions.py -k check_batch_normalisation"),
    "kernels: no gradient by what is not a number": ("lab/convolutions.py",
        "tl.where(opening.to(tl.float32) <= 0, 0.0, value)", "tl.where(opening.to(tl.float32) > 0, value, 0.0)",
        "test_convolutions.py -k check_what_is_done"),
    "lab: biases are penalised": ("lab/engine.py", "param.ndim > 3",
        "param.ndim > 2", "test_engine.py -k mixed_methods and softmax"),
    "lab: a late divergence unseen": (
        "lab/engine.py", "finite = running[0].isfinite() & train[0].isfinite() & test[0].isfinite()",
        "finite = running[0].isfinite()", "test_engine.py -k last_step"),
    "lab: resumed with another noise": ("lab/engine.py", 'self.step.copy_(state["step"])',
        "pass", "test_engine.py -k goes_on_exactly and wada"),
    "lab: a milestone too early": ("lab/spec.py", "sum(epoch > milestone",
        "sum(epoch >= milestone", "test_spec.py -k milestones_count"),
    "lab: a run recorded twice is replaced": ("lab/records.py", '"INSERT OR IGNORE INTO runs',
        '"INSERT OR REPLACE INTO runs', "test_records.py -k first_stays"),
    "lab: a grown grid begins anew": (
        "lab/sweep.py", "_resumed(plan(prepared, records.find(wanted)), prepared, desk)",
        "plan(prepared, records.find(wanted))", "test_sweep.py -k though_the_grid"),
    "lab: stacks are as large as ever": ("lab/planning.py", "size = min(size, each.stack or size)", "pass",
        "test_sweep.py -k every_engine_is_given"),
    "lab: GPUs are asked for in vain": ("cli.py", '"cpus": cpus, "gpus": gpus}', '"cpus": cpus}',
        "test_lab_cli.py -k without_a_cluster"),
    "lab: checkpoints of others are removed": (
        "lab/sweep.py", "return Checkpoints(f\"{engine.checkpoints.rstrip('/')}/wagmf-{records.name()}\")",
        "return Checkpoints(engine.checkpoints)", "test_sweep.py -k files_of_others"),
    "lab: some of the code has a hash": ("lab/environment.py", 'package.rglob("*.py")', 'package.glob("*.py")',
        "test_provenance.py -k by_the_code"),
    "lab: the worst accuracy is the best": ("lab/live.py", " if better_is_lower(self._by[name]) else -value",
        "", "test_live.py -k accuracy_chooses"),
    "lab: a step size may lose its digits": ("lab/spec.py", "least=RATES[0],", "above=0,", "test_spec.py -k lr"),
    "tuning: a grid goes beyond what there may be": (
        "lab/tuning.py", "tuple(filter(_possible, wanted))", "tuple(wanted)", "test_tuning.py -k may_not_be"),
    "lab: half a checkpoint stays": ("lab/checkpoints.py", 'if found.startswith(f".{name}-"):',
        'if found.startswith(f"{name}-"):', "test_checkpoints.py -k half_a"),
    "lab: a place is not tried": ("lab/checkpoints.py", "self._guarded(self._try_out,", "self._guarded(lambda: None,",
        "test_checkpoints.py -k place_where"),
    "lab: a cluster does not ask for locks": (
        "lab/cluster.py", "lock = self.desk.locked(work.identity)", "lock = ExitStack()",
        "test_cluster.py -k waited_for"),
    "lab: a cluster of others is joined": ("lab/cluster.py", 'if named != "auto":', 'if named:',
        "test_cluster.py -k named_or_noted"),
    "lab: a cluster that is named and not there is none": (
        "lab/cluster.py", '        _knock(named, "RAY_ADDRESS")\n', "", "test_cluster.py -k cannot_be_joined"),
    "lab: a note of nothing is refused": ("lab/cluster.py", "except (OSError, ValueError) as error:\n        told(",
        "except ZeroDivisionError as error:\n        told(", "test_cluster.py -k cannot_be_joined"),
    "lab: a node that comes later is not asked": (
        "lab/cluster.py", '    _same_source(socket.gethostname(), environment("cpu")["source"], here.source)\n', "",
        "test_cluster.py -k comes_later"),
    "lab: only the file of a model travels": ("lab/cluster.py", "names += [_home_of(value)", "[_home_of(value)",
        "test_cluster.py -k what_a_model_imports"),
    "lab: nobody says which cluster was joined": (
        "lab/cluster.py", 'told(f"Joined the Ray cluster', '(f"Joined the Ray cluster',
        "test_cluster.py -k named_or_noted"),
    "lab: a cluster that is lost is not told": (
        "lab/cluster.py", "except kind as error:", "except ZeroDivisionError as error:",
        "test_cluster.py -k that_is_lost_is_told"),
    "lab: nobody looks after the head": ("lab/cluster.py", "self.cluster.look()", "pass",
        "test_cluster.py -k before_ray_waits"),
    "lab: Ray is asked without its head": ("lab/cluster.py", "self.alone = True", "pass",
        "test_cluster.py -k before_ray_waits"),
    "lab: more GPUs than any node has": ("lab/cluster.py", '_able("gpus", self.gpus, some or there)', "some or there",
        "test_cluster.py -k no_node_has"),
    "lab: one GPU and a half": ("lab/cluster.py", "if number < 1 else int(number)", "if number < 1 else number",
        "test_cluster.py -k no_node_has"),
    "lab: device cpu takes GPUs": ("lab/cluster.py", 'return 0.0 if device == "cpu" else number', "return number",
        "test_cluster.py -k asks_for_none"),
    "lab: GPUs are asked for to look at nodes": (
        "lab/cluster.py", 'if self.gpus and node["Resources"]', 'if node["Resources"]',
        "test_cluster.py -k asks_for_none"),
    "lab: waiting for GPUs in silence": ("lab/cluster.py", "        if names:\n", "        if False:\n",
        "test_cluster.py -k waited_for_aloud"),
    "lab: a cluster trains on": ("lab/cluster.py", "self.ray.cancel(task, force=True)", "pass",
        "test_cluster.py -k however_it_ends"),
    "lab: the zoo instead of one's own": ("lab/planning.py", " and problem.model not in factories:",
        ":", "test_sweep.py -k called_like"),
    "lab: half precision is left off": ("lab/modules.py", "enabled=low,",
        "enabled=False,", "test_compare.py -k half_precision"),
    "lab: after a search nobody knows what chose": ("lab/live.py", "self._chosen_by.get(of.name, self._criterion)",
        "self._criterion", "test_live.py -k accuracy_chooses"),
    "lab: what chooses may be no number": ("lab/live.py", 'math.isnan(ends["train_loss"] + value)',
        'math.isnan(ends["train_loss"])', "test_live.py -k no_value_to_choose"),
    "lab: the view's title is what it always was": ("lab/live.py", "or [self._criterion]", 'or ["train_loss"]',
        "test_live.py -k before_anything"),
    "lab: who watches does not know what chooses": ("cli.py", "LiveView(_err, by=by)", "LiveView(_err)",
        "test_study.py -k who_watches"),
    "records: whatever JSON has is a number": ("lab/records.py", "-_LARGEST <= value <= _LARGEST", "True",
        "test_records.py -k not_sound"),
    "records: true is a number of epochs": ("lab/records.py", "type(value) is not int or", "",
        "test_records.py -k not_sound"),
    "records: a stack may have taken for ever": ("lab/records.py", "run.seconds, least=0, most=_LONGEST)",
        "run.seconds, least=0)", "test_records.py -k not_sound"),
    "records: accuracies are as large as losses": ("lab/records.py", '(0, 1) if metric.endswith("accuracy") else ', "",
        "test_records.py -k not_sound"),
    "records: curves may be shorter than runs": ("lab/records.py", " or len(values) != epochs:", ":",
        "test_records.py -k not_sound"),
    "records: what diverged goes on": ("lab/records.py", "        if late:", "        if False:",
        "test_records.py -k not_sound"),
    "records: what did not diverge may end in nothing": ("lab/records.py", "_check_values(metric, values[:before])",
        "_check_values(metric, [v for v in values if v is not None])", "test_records.py -k not_sound"),
    "records: null is a table of options": ("lab/records.py", 'config.get("method_options", {}), dict)',
        'config.get("method_options", {}) or {}, dict)', "test_records.py -k not_sound"),
    "records: a run is of an experiment twice": ("lab/records.py", "if len({*names}) < len(names):", "if False:",
        "test_records.py -k not_sound"),
    "records: the last of two runs of a key counts": ("lab/records.py", "if run.key in runs and (", "if False and (",
        "test_records.py -k there_twice"),
    "records: an archive may be empty": ("lab/records.py", "    if not runs:\n        raise Refused(", "    if False:\n"
        "        raise Refused(", "test_records.py -k no_archive"),
    "lab: what is not a number is best": ("lab/live.py", "return name, math.isnan(",
        "return name, False and math.isnan(", "test_live.py -k best_so_far"),
    "reproduction: a search that is not over begins anew": (
        "lab/paper_runs.py", 'for folder in (archives, archives / "anew"):', "for folder in (archives,):",
        "test_reproduction.py -k taken_up_again"),
    "reproduction: what waits is filed without a name": (
        "lab/paper_runs.py", "over = all(key in names for key, several in meant.items() if several)", "over = True",
        "test_reproduction.py -k taken_up_again"),
    "reproduction: a search chooses when what it chose is run": (
        "lab/anew.py", "bool(chosen),", "bool(own),", "test_reproduction.py -k over_when_it_has_chosen"),
    "reproduction: runs of any length are what was chosen": (
        "lab/anew.py", " and problem_of(run) == problem and not run.diverged", " and not run.diverged",
        "test_reproduction.py -k by_shorter_runs"),
    "reproduction: methods are refused when all is trained": (
        "lab/paper_runs.py", "if arm.method not in PAPER_METHODS:", "if False:",
        "test_reproduction.py -k no_words_for"),
    "reproduction: what was whole goes when a search begins": (
        "lab/paper_runs.py", "replaced = _is_whole(name, called) and not", "replaced = False and not",
        "test_reproduction.py -k until_a_new"),
    "reproduction: a search that is over goes on": ("lab/evidence.py", " if key not in runs)", ")",
        "test_reproduction.py -k not_over_is_told"),
    "reproduction: seeds that a method lacks count": (
        "lab/anew.py", "set.intersection(*map(set, ends.values()))", "set.union(*map(set, ends.values()))",
        "test_reproduction.py -k told_of_until"),
    "reproduction: what was chosen again is told by its search": (
        "lab/retold.py", "ends = again.ends or {", "ends = {",
        "test_reproduction.py -k told_of_until"),
    "study: a question of nothing is asked after training": ("cli.py", "    check_questions(study, experiments)\n", "",
        "test_study.py -k before_training"),
    "tuning: an edge is good enough": (
        "lab/tuning.py", "if not lost and _falls(tried, rates[::-1]) and", "if False and",
        "test_tuning.py -k extended_until"),
    "tuning: a second valley is passed by": (
        "lab/tuning.py", "(edge < tried[rates[1]] and", "(edge == min(tried.values()) and",
        "test_tuning.py -k second_valley"),
    "tuning: noise is followed": ("lab/tuning.py", " and edge <= statistics.median(tried.values())", "",
        "test_tuning.py -k noise_where"),
    "tuning: of equals the smallest": ("lab/tuning.py", "else (len(rates) - 1) / 2", "else 0.0",
        "test_tuning.py -k of_equals"),
    "tuning: an accuracy is a loss": ("lab/tuning.py", "end if better_is_lower(by) else 1 - end", "end",
        "test_tuning.py -k metric_that_is_asked_for"),
    "tuning: what rounding tells apart is tried again": (
        "lab/tuning.py", "near if same_rate(near, lr) else lr", "lr",
        "test_tuning.py -k rounding_alone"),
    "study: every grid was searched by the loss": ("lab/study.py", "for metric in {TUNED, _by(one)}:",
        "for metric in {TUNED}:", "test_study.py -k another_metric_chose"),
    "study: any step size will do": ("lab/study.py", "[one for one in run if not self.mischosen(one)]", "run",
        "test_study.py -k not_the_best_by"),
    "grids: an accuracy is a loss": ("lab/grids.py", "(slack_a, slack_b) if lower else (slack_b, slack_a)",
        "(slack_a, slack_b)", "test_grids.py -k either_method"),
    "grids: what chose is forgotten": ("lab/grids.py", ", slope * half - curved * half**2, here - min(losses.values())",
        ", 0.0", "test_grids.py -k something_else"),
    "tuning: short runs count for long ones": (
        "lab/tuning.py", "known = coarse if tuning.fine_epochs == tuning.epochs else {}", "known = coarse",
        "test_tuning.py -k different_length"),
    "tuning: below is not heard": ("lab/tuning.py", "range(-tuning.below,", "range(-2,",
        "test_tuning.py -k as_far_below"),
    "reproduction: of an earlier search the worst is told": (
        "lab/reproduction.py", 'run.end("train_loss"), reverse=True)', 'run.end("train_loss"))',
        "test_reproduction.py -k replaced"),
    "claims: what is not in the table has a family of its own": (
        "lab/claims.py", "_with_the_table(beside, table)\n", "beside\n", "test_claims.py -k adjusted_for"),
    "reproduction: the nearest is that of the one ahead": (
        "lab/reproduction.py", 'ahead, behind = ("wada", BASELINES)', 'ahead, behind = ("wada", ("wada",))',
        "test_reproduction.py -k how_near"),
    "tuning: above is not heard": ("lab/tuning.py", "tuning.above + 1", "2 + 1", "test_tuning.py -k as_far_above"),
    "tuning: a diverged run is the best": ("lab/tuning.py", "math.inf if end is None else", "0.0 if end is None else",
        "test_tuning.py -k infinitely_bad"),
    "claims: every advantage matters": ("lab/claims.py", "excluded = most < margin", "excluded = most < 0",
        "test_claims.py -k rule_of_a_comparison"),
    "claims: far behind is level": ("lab/claims.py", "and least >= -margin and most <= margin", "and most <= margin",
        "test_claims.py -k rule_of_a_comparison"),
    "claims: who stood still has failed": ("lab/claims.py", "walked.level >= 1 - _QUARTER and moved",
        "walked.level >= 1 - _QUARTER", "test_claims.py -k follows_the_walks or every_step_size"),
    "claims: another test than the paper's": ("lab/claims.py", 'table[key]["student"] < _ALPHA',
        'table[key]["paired"] < _ALPHA', "test_claims.py -k student_does_not_see"),
    "reproduction: a higher loss is ahead": ("lab/evidence.py", 'if sign * row["difference"] > 0',
        'if row["difference"] > 0', "test_reproduction.py -k p_values"),
    "study: what is no better is better": ("lab/questions.py", '{"a": "better", "b": "worse"}',
        '{"a": "worse", "b": "better"}', "test_study.py -k other_records and losses0"),
    "study: better somewhere is enough": ("lab/questions.py", 'bool(each["better"]) and not each["worse"] for',
        'bool(each["better"]) for', "test_study.py -k rule_of_an_answer"),
    "grids: a difference is one of methods": ("lab/grids.py", 'abs(row["difference"]) <= behind', "False",
        "test_study.py -k finer_grid"),
    "grids: who is ahead might gain": ("lab/grids.py", '{"a": slack_b, "b": slack_a}', '{"a": slack_a, "b": slack_b}',
        "test_claims.py -k finer_grid"),
    "grids: an edge is no matter": ("lab/grids.py", "        return math.inf\n    around",
        "        return 0.0\n    around", "test_study.py -k edge_of_its_grid"),
    "study: small differences matter": ("lab/questions.py", " and abs(self.difference) >= self.margin", "",
        "test_study.py -k too_small_to_matter"),
    "study: what others have trained is trained again": ("lab/paper_runs.py", "    for one in known:",
        "    for one in ():", "test_study.py -k whole_study"),
    "reproduction: a trial's walks are kept in the place of others": ("cli.py", "    if not have <= {*tasks}:",
        "    if False:", "test_reproduction.py -k are_not_lost"),
    "reproduction: costs are measured again": ("cli.py", "    if not path.exists():\n        _say(",
        "    if True:\n        _say(", "test_reproduction.py -k are_not_lost"),
    "reproduction: any README is ours": ("cli.py", "if not there and (page", "if False and (page",
        "test_reproduction.py -k page_of_somebody"),
    "reproduction: what was not asked for passes": ("cli.py", 'source.name == "COMMANDLINE"', 'source.name == "X"',
        "test_reproduction.py -k cannot_be_done_is_refused"),
    "reproduction: what trains as well need not test better": (
        "lab/retold.py", " and there[2] > one.accuracy + ACCURACY_MARGIN", "",
        "test_reproduction.py -k trains_as_well"),
    "reproduction: anything trains as well": ("lab/anew.py", "<= best.loss + within", "<= best.loss + 9",
        "test_reproduction.py -k trains_as_well"),
    "reproduction: what is not chosen is": (
        "lab/reproduction.py", "again.best.items()} if again.over else {}", "again.best.items()}",
        "test_reproduction.py -k are_in_the_table"),
    "reproduction: nothing is as good as itself": ("lab/anew.py", "if lr == best.lr or loss <=", "if loss <=",
        "test_reproduction.py -k trains_as_well"),
    "reproduction: a study's page is written over": ("cli.py", "    if (out / STUDY).exists():", "    if False:",
        "test_reproduction.py -k page_of_somebody"),
    "study: archives of searches that are not over are none": ("cli.py", "each.rglob(", "each.glob(",
        "test_study.py -k only_a_search"),
    "study: what chose is told without a break": ("lab/study.py", 'apart = "; ".join(', 'apart = " ".join(',
        "test_study.py -k told_apart"),
    "study: a folder is made for nothing": ("cli.py", "        if not train and not there:", "        if False:",
        "test_study.py -k cannot_be_done"),
    "evidence: the first of two runs of a key counts": ("lab/evidence.py", "if apart := differs(run, there):",
        "if apart := False:", "test_evidence.py -k same_in_all"),
    "evidence: a run may have several keys": ("lab/evidence.py", "        if other != run.key:", "        if False:",
        "test_evidence.py -k one_key"),
    "evidence: runs are the same to the last digit": (
        "lab/records.py", " or shortened(run).curves == shortened(other).curves", "",
        "test_evidence.py -k single_precision"),
    "evidence: a name is of several problems": ("lab/evidence.py", "    kept.check_problems()\n", "",
        "test_evidence.py -k one_problem"),
    "evidence: data that were moved are others": ("lab/records.py", '(*_APART, "dataset")}', "_APART}",
        "test_evidence.py -k lie_elsewhere"),
    "evidence: any method is the paper's": ("lab/evidence.py", "                _check_place(run, name, path)",
        "                pass", "test_evidence.py -k paper_s_experiments"),
    "evidence: what is kept apart is named twice": ("lab/evidence.py", "called.get(key) or several for", "several for",
        "test_evidence.py -k has_no_other_names"),
    "evidence: a file is a folder without archives": ("lab/evidence.py", "folder.exists() and not folder.is_dir()",
        "False", "test_evidence.py -k in_folders"),
    "evidence: walks are runs": ("lab/evidence.py", "        if path.name == _WALKS:", "        if False:",
        "test_evidence.py -k are_runs"),
    "evidence: a step takes no time": ("lab/evidence.py", "return 0 < float(text) <", "return 0 <= float(text) <",
        "test_evidence.py -k cost_that_is_none"),
    "evidence: a cost is there twice": ("lab/evidence.py", "        if before != place:", "        if False:",
        "test_evidence.py -k there_once"),
    "study: what a search has that is not over is trained again": ("lab/questions.py", "each.rglob(", "each.glob(",
        "test_study.py -k not_over"),
    "reproduction: what is known is held beside the first search": (
        "lab/anew.py", "    if again is not None and again.told", "    if False and again.told",
        "test_reproduction.py -k by_what_chooses"),
    "reproduction: what only rounding tells apart is tried twice": (
        "lab/anew.py", "tried = _distinct(tried)", "tried = list(tried)",
        "test_reproduction.py -k drawn_of or one_step_size"),
    "reproduction: what was searched in between is lost": (
        "lab/paper_runs.py", "(aside if replaced or over else [])", "[]",
        "test_reproduction.py -k changed_again"),
    "reproduction: a search that was given up is told of": (
        "lab/anew.py", "if not set(names).isdisjoint(evidence.names.get(run.key, ()))", "if run.experiment in names",
        "test_reproduction.py -k searched_in_between"),
    "reproduction: another problem's runs are of the search": (
        "lab/anew.py", "runs = [run for run in fine if problem_of(run) == problem]", "runs = fine",
        "test_reproduction.py -k searched_in_between"),
    "reproduction: the best that some seeds have tried": ("lab/anew.py", "if len(each) == seeds}", "if each}",
        "test_anew.py -k not_tried"),
    "reproduction: methods that were not searched are told of": (
        "lab/anew.py", "if self.over or method in searched}", "}", "test_reproduction.py -k not_over_is_told"),
    "reproduction: some methods' longest runs are all methods'": (
        "lab/anew.py", "again.told.keys() >= set(_METHODS)", "again.told",
        "test_reproduction.py -k by_what_chooses"),
    "reproduction: runs of the search that diverged are its choice's": (
        "lab/retold.py", '"own_diverged": sum(bool(run.diverged) for run in again.own)',
        '"own_diverged": sum(bool(run.diverged) for run in (*again.runs, *again.own))',
        "test_reproduction.py -k told_of_until"),
    "reproduction: what is told of is told of nowhere": (
        "lab/retold.py", " for run in evidence.anew if run.key not in told)", " for run in evidence.anew)",
        "test_reproduction.py -k told_of_nowhere"),
    "records: an end without a value is nothing": ("lab/records.py", 'return float("nan") if last is None else last',
        "return last", "test_anew.py -k no_value"),
    "reproduction: a search is over before it has chosen": (
        "lab/reproduction.py", "for name, again in anew.items() if again.over}", "for name, again in anew.items()}",
        "test_reproduction.py -k drawn_of"),
    "study: some methods are all of them": ("lab/study.py", '["method"]) >= {*self.methods(one)}', '["method"])',
        "test_study.py -k one_method_fewer"),
    "claims: what a finer grid might change speaks against it": (
        "lab/claims.py", '"open" if row["better"] == "a" != wide["better"] else _better(', "_better(",
        "test_claims.py -k only_a_finer_grid"),
    "claims: the last word on ResNet-20 is none": ("lab/claims.py", "(*DEMANDS.values(), (_OVER_ALL,))",
        "DEMANDS.values()", "test_claims.py -k text_states"),
    "reproduction: who chose is among the others": ("lab/evidence.py", "seed not in seeds.get(name, ())", "True",
        "test_reproduction.py -k folder_follows"),
    "reproduction: 0.05 on either side": ("lab/reproduction.py", " if float(text) != ALPHA or p == ALPHA", "",
        "test_reproduction.py -k threshold"),
    "report: grids are as fine as can be": ("lab/report.py", 'beyond_the_grid(row, metric, slacks)["better"]',
        'row["better"]', "test_reproduction.py -k report_shows"),
    "reproduction: shared minutes count twice": ("lab/evidence.py", " / at[stack[3]]", "",
        "test_reproduction.py -k minutes"),
    "reproduction: who waits pays as who works": ("lab/evidence.py", " * run.config.get(\"epochs\", 1)", "",
        "test_reproduction.py -k minutes"),
    "reproduction: a stack of many is no busier": ("lab/evidence.py", "busy.get(stack_of(run), 0.0) + ", "",
        "test_reproduction.py -k minutes"),
    "reproduction: long stacks were busy ones": ("lab/evidence.py", " / (run.seconds or 1.0)", "",
        "test_reproduction.py -k minutes"),
    "reproduction: devices share their minutes": ("lab/evidence.py", " / at[stack[3]]", " / sum(at.values())",
        "test_reproduction.py -k minutes"),
}  # fmt: skip


def outcome(folder: Path, tests: str, **settings) -> forks.Ended:
    """Run the tests, up to the first failure, on the package in ``folder``."""
    file, chosen = tests.split(" -k ")
    file, _, backend = file.partition("@")
    if backend:  # of Keras
        settings |= {"KERAS_BACKEND": backend}
    # Without doctests, which would take longer than the tests.
    options = ["-x", "-q", "-p", "no:cacheprovider", f"tests/{file}", "-k", chosen]
    options += ["-o", "addopts=--import-mode=importlib"]
    if "check_" in tests:
        options += ["-o", "python_functions=check_*"]
    if (
        "triton" in file or "convolutions" in file
    ):  # in Triton's interpreter, which Triton must be told before it is imported
        settings |= {"fresh": True, "TRITON_INTERPRET": "1"}
    return forks.run(forks.tests_on, folder, options, NUMBA_CACHE_DIR=str(folder.parent / "compiled"), **settings)


@pytest.fixture
def folder(tmp_path_factory) -> Path:
    """Always the same one, so that what was compiled of an unchanged file is found again."""
    place = tmp_path_factory.getbasetemp() / "mutants" / "folder"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def copy_of_the_package(folder: Path) -> Path:
    return shutil.copytree(SRC, folder / "wagmf", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_error_is_caught(name, folder):
    file, old, new, tests = MUTANTS[name]
    target = copy_of_the_package(folder) / file
    source = target.read_text()
    assert source.count(old) >= 1, "the text to change is no longer there: bring the mutant up to date"
    target.write_text(source.replace(old, new, 1))
    result = outcome(folder, tests)
    assert result.code == 1, f"not caught by {tests}, which ended with {result.code}:\n{result.said[-4000:]}"
    assert "1 failed" in result.said, result.said[-4000:]


@pytest.mark.parametrize("file", sorted({tests.split(" -k ")[0] for *_, tests in MUTANTS.values()}))
def test_without_an_error_they_pass(file, folder):
    """It is the error that fails them, not the copying, nor how they are run."""
    copy_of_the_package(folder)
    chosen = dict.fromkeys(tests.split(" -k ")[1] for *_, tests in MUTANTS.values() if tests.startswith(f"{file} "))
    result = outcome(folder, f"{file} -k {' or '.join(f'({names})' for names in chosen)}")
    assert result.code == 0, result.said[-4000:]
    assert " passed" in result.said


def test_only_the_copy_is_tested(folder):
    """Without one, the tests pass on the package itself; such a trial does not count."""
    result = outcome(folder, AHEAD)
    assert " passed" in result.said
    assert result.code == pytest.ExitCode.INTERNAL_ERROR
    assert f"tested {wagmf.__file__}, not the copy" in result.said


def test_tests_that_hang_are_stopped(folder):
    copy_of_the_package(folder)
    with pytest.raises(pytest.fail.Exception, match="took longer than"):
        outcome(folder, AHEAD, limit=0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are fresh, not forked")
def test_what_is_forked_has_one_thread_and_has_not_imported_the_package():
    program = "import os, sys; print(len(os.listdir(f'/proc/{os.getppid()}/task')), 'wagmf' in sys.modules)"
    assert forks.run(forks.program, program) == forks.Ended(0, "1 False\n")
