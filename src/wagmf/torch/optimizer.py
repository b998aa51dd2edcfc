"""WAGMF: every method of the table as a torch optimizer."""

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.autograd import profiler as _profiler
from torch.optim.optimizer import (
    Optimizer,
    ParamsT,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

from wagmf.arguments import one_of, real, refuse
from wagmf.feasible import Box, Everything, Feasible, NonNegative
from wagmf.rule import Rule, as_rule, fold
from wagmf.torch.batch import Batch, put
from wagmf.torch.plain import step_plain
from wagmf.torch.teams import Roster, check_lr

__all__ = ["WAGMF", "Options"]

_RULE_FIELDS = tuple(f.name for f in fields(Rule))
_RULE_KEYS = {*_RULE_FIELDS, "beta2", "eta", "betas"}  # what a parameter group may say of its rule, besides "rule"
_CHECKED = ("rule", "momentum", "lr", "eps", "weight_decay", "feasible")  # what a check may write in another way
_FOREIGN = ("alpha", "amsgrad", "centered", "dampening", "initial_accumulator_value", "lr_decay", "momentum_decay")


class Options(TypedDict, total=False):
    """What every optimizer takes besides its own parameters; see :class:`WAGMF`.

    >>> "weight_decay" in Options.__annotations__
    True
    """

    eps: float
    decay: float | None
    weight_decay: float
    decoupled_weight_decay: bool
    feasible: Feasible | None
    maximize: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    state_dtype: torch.dtype | None
    stochastic_rounding: bool


class WAGMF(Optimizer):
    """The weighted adaptive gradient method that ``rule`` describes.

        m ← β1_t·m + (1 - β1_t)·g
        u ← 1 + ρ_t·u
        v ← v + (|g|^p1 - v)/u
        x ← P_F^V( x - α_t·m / V )            V = v^(1/p2) + eps,  α_t = lr·t^-decay

    A parameter whose gradient is None takes no step, and neither its t nor its u advances. Parameter groups may
    override every option, and every field of the rule by its name.

    Args:
        params: parameters, named parameters, or parameter groups.
        lr: the step size α; a tensor with one entry per replica goes along the leading axis of every parameter.
        rule: the method; ``wagmf.method(name).rule`` gives a named one.
        eps: added to V.
        decay: α_t = lr·t^-decay; by default the rule's own.
        weight_decay: λ of an L2 penalty, added to the gradient; or of decoupled decay,
        decoupled_weight_decay: which shrinks x by the factor 1 - α_t·λ instead (AdamW).
        feasible: the set every parameter is projected onto, in the norm of its V.
        maximize: ascend.
        foreach: multi-tensor operations; None chooses them where they are faster.
        fused: one kernel for all tensors; None chooses it where there is one, True insists.
        capturable: keep t and u on the device, so that a CUDA graph can hold the step.
        differentiable: let autograd see through the step.
        state_dtype: of m, v and the maximum; by default that of the parameter, but at least float32.
        stochastic_rounding: round bfloat16 parameters and state up or down at random, right on average.

    >>> x = torch.ones(2, requires_grad=True)
    >>> optimizer = WAGMF([x], lr=0.5, rule=Rule(beta1=0.0))
    >>> x.sum().backward()
    >>> optimizer.step()
    >>> x
    tensor([0.5000, 0.5000], requires_grad=True)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        rule: Rule | None = None,
        eps: float = 1e-7,
        decay: float | None = None,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        feasible: Feasible | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        rule = as_rule(rule, decay)
        defaults = {
            "lr": lr,
            "rule": rule,
            "momentum": rule.beta1,  # by the name that OneCycleLR and CyclicLR look for
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "feasible": feasible,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
            "differentiable": differentiable,
            "state_dtype": state_dtype,
            "stochastic_rounding": stochastic_rounding,
        }
        _check(defaults)
        super().__init__(params, defaults)
        self._rosters: list[Roster] = []
        self._states: list[dict[str, Any]] = []  # as they were after the last step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; what it does not say it takes from the optimizer."""
        if isinstance(param_group, dict):
            group = {**self.defaults, **param_group}
            _check(group)
            if group["differentiable"] != self.defaults["differentiable"]:
                refuse("differentiable", group["differentiable"], "it must be the same for all groups")
            # A copy: the caller may give the same dict to an optimizer of another kind.
            param_group = {key: group[key] for key in group if key in param_group or key in _CHECKED}
            if isinstance(param_group["params"], Iterable) and not isinstance(param_group["params"], Tensor | set):
                param_group["params"] = list(param_group["params"])
                _check_params(param_group["params"], param_group["lr"], param_group["feasible"])
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: the clocks one by one, not as views of a table."""
        state = {param: _own_clocks(each) for param, each in self.state.items()}
        return {**super().__getstate__(), "state": defaultdict(dict, state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.update(_rosters=self.__dict__.get("_rosters", []), _states=[])
        for roster in self._rosters:
            roster.disband()
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        if "_loading" in self.__dict__:
            self._restore(*self._loading)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler leaves the unscaling to us where every group insists on one kernel, which does it on the way."""
        return all(group["fused"] is True for group in self.param_groups)

    @property
    def paths(self) -> list[str]:
        """How the last step was taken, for each set of parameters that stepped together.

        >>> x = torch.ones(2, requires_grad=True)
        >>> x.grad = torch.ones(2)
        >>> optimizer = WAGMF([x], fused=False)
        >>> optimizer.step()
        >>> optimizer.paths
        ['group 0: 1 parameters by plain, not fused because of fused=False']
        """
        told = []
        for number, roster in enumerate(self._rosters):
            for team in roster.stepped:
                why = f", not fused because of {team.path.why}" if team.path.why else ""
                told.append(f"group {number}: {len(team.params)} parameters by {team.path.name}{why}")
        return told

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step along the gradients; ``closure`` may compute them, and its loss is returned."""
        if _profiler._is_profiler_enabled or _watchers(self):
            return self._watched_step(closure)
        return self._step(closure)

    cast(Any, step).hooked = True  # by which the base class knows that it need not wrap it

    def _step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        before = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(self.defaults["differentiable"])
            self._update()
        finally:
            torch.set_grad_enabled(before)
        return loss

    # The base class opens a range for the profiler at every step, at a cost; we do where somebody looks or listens.
    _watched_step = Optimizer.profile_hook_step(_step)

    def _update(self) -> None:
        scaling = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if scaling[1] is not None and not self._is_captured():
            if scaling[1].item():
                return
            scaling = scaling[0], None
        if torch.compiler.is_compiling():
            for group in self.param_groups:
                self._traced(group, scaling)
            return
        self._recall()
        for group, roster in zip(self.param_groups, self._rosters, strict=True):
            if not _RULE_KEYS.isdisjoint(group) or group["momentum"] != group["rule"].beta1:
                _check(group)
            roster.step(group, self._state_of, scaling)
        self._states = list(self.state.values())

    def _is_captured(self) -> bool:
        """Whether everything that a step depends on stays on the device."""
        return all(group["capturable"] and all(x.is_cuda for x in group["params"]) for group in self.param_groups)

    def _recall(self) -> None:
        """Forget what is no longer so: which parameters there are, and which state is whose."""
        if len(self.state) != len(self._states) or not all(map(operator.is_, self.state.values(), self._states)):
            for roster in self._rosters:
                roster.disband()
            for state in self.state.values():  # it may have been another's, whose clock is to be set
                state.update(_own_clocks(state))
        for number, group in enumerate(self.param_groups):
            if number == len(self._rosters):
                self._rosters.append(Roster(group["params"]))
            elif not self._rosters[number].holds(group["params"]):
                self._rosters[number] = Roster(group["params"])
        del self._rosters[len(self.param_groups) :]

    def _traced(self, group: dict[str, Any], scaling: tuple[Any, Any]) -> None:
        """The step for torch.compile, which fuses the rule's own text: one parameter at a time, t and u as tensors."""
        if not _RULE_KEYS.isdisjoint(group) or group["momentum"] != group["rule"].beta1:
            _check(group)
        for param in group["params"]:
            if param.grad is None:
                continue
            state = self._state_of(param, group)
            kept = [[_real(state[name])] if name in state else [] for name in ("m", "v", "peak")]
            t = state["step"] + 1
            batch = Batch.of(group, t, state["window"], [[_real(param)], [_real(param.grad)], *kept], scaling[0])
            put(state["window"], step_plain(batch))
            put(state["step"], t)

    def _state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The parameter's state, made when its first gradient comes."""
        grad, state = param.grad, self.state[param]
        if grad is not None and grad.is_sparse:
            raise RuntimeError(
                f"{type(self).__name__} does not take sparse gradients; parameter of shape {tuple(param.shape)} has one"
            )
        rule = group["rule"]
        if not state:
            state["step"] = _clock(0.0, param, group)
            state["window"] = _clock(rule.start, param, group)
        dtype = group["state_dtype"] or torch.promote_types(param.dtype, torch.float32)
        if param.is_complex() and not dtype.is_complex:
            dtype = torch.promote_types(dtype, torch.complex64)
        for name, keep in rule.keeps.items():
            if not keep:
                state.pop(name, None)
            elif name not in state:
                state[name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
            elif state[name].stride() != param.stride() and state[name].shape == param.shape:  # as after channels_last
                state[name] = torch.empty_like(param, dtype=state[name].dtype).copy_(state[name])
        return state

    def state_dict(self) -> dict[str, Any]:
        """The state, and the rule in plain values; a feasible set is code and is not saved."""
        handle = self.register_state_dict_post_hook(_pack, prepend=True)  # so that other hooks find it packed
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def load_state_dict(self, state_dict: dict[str, Any], *, rule: str = "same") -> None:
        """Load what :meth:`state_dict` gave. The checkpoint's rule must be this optimizer's.

        ``rule="same"`` refuses a different one, ``"saved"`` takes the checkpoint's, ``"current"`` keeps this one's.
        """
        one_of("rule", rule, ("same", "saved", "current"))
        handle = self.register_load_state_dict_pre_hook(lambda _, given: self._before_loading(given, rule))
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self.__dict__.pop("_loading", None)

    def _before_loading(self, state_dict: dict[str, Any], rule: str) -> None:
        """Look at what all other hooks have made of a checkpoint, and choose the rules to go on with."""
        groups = state_dict.get("param_groups", [{}])
        if not all("rule" in group for group in groups):
            right = "what state_dict() of a wagmf optimizer gave; this has no rule"
            refuse("checkpoint", f"one with keys {sorted({*state_dict, *itertools.chain(*groups)}, key=str)}", right)
        saved = [Rule.from_dict(group["rule"]) for group in groups]
        mine = [group["rule"] for group in self.param_groups]
        for number, (group, theirs, ours) in enumerate(zip(groups, saved, mine, strict=False)):
            # A scheduler that cycles momentum, which leaves its bounds in the group, makes no other rule of it.
            cycled = ("beta1",) if "base_momentum" in group else ()
            changed = [n for n in _RULE_FIELDS if n not in cycled and getattr(theirs, n) != getattr(ours, n)]
            if rule == "same" and changed:
                told = ", ".join(f"{n} {getattr(theirs, n)} there, {getattr(ours, n)} here" for n in changed)
                refuse(
                    "checkpoint",
                    f"group {number}: {told}",
                    'load_state_dict(..., rule="saved") or rule="current" chooses',
                )
        rules, told = (mine, self.param_groups) if rule == "current" else (saved, groups)
        # A scheduler may have set it for the step to come, which the rule does not know yet.
        momenta = [group.get("momentum", each.beta1) for group, each in zip(told, rules, strict=True)]
        self._loading = state_dict, rules, momenta, [group["feasible"] for group in self.param_groups]

    def _restore(
        self, state_dict: dict[str, Any], rules: list[Rule], momenta: list[float], sets: list[Feasible | None]
    ) -> None:
        """Put back the state as it was saved: the base class casts it to the dtype of the parameter."""
        for group, rule, momentum, feasible in zip(self.param_groups, rules, momenta, sets, strict=True):
            group["rule"], group["feasible"], group["momentum"] = rule, feasible, momentum
        keys = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        owners = ((param, group) for group in self.param_groups for param in group["params"])
        for key, (param, group) in zip(keys, owners, strict=True):
            saved = state_dict["state"].get(key)
            if not saved:
                continue
            state = self.state[param]
            for name in ("step", "window"):
                state[name] = _clock(float(saved[name]), param, group)
            for name in {"m", "v", "peak"} & saved.keys():
                state[name] = saved[name].detach().to(param.device, copy=True)


def _check(group: dict[str, Any]) -> None:
    """Refuse what is wrong in a group, and fold what it says of its rule into the rule."""
    for name in _FOREIGN:
        if name in group:
            refuse(
                name,
                group[name],
                "an option of torch.optim, but not here; wagmf.method(name).rule tells what a method has",
            )
    said = {key: group.pop(key) for key in _RULE_KEYS & group.keys()}
    rule = as_rule(group["rule"])
    if group.get("momentum", rule.beta1) != rule.beta1:  # somebody, such as a scheduler, has changed it
        said = {"beta1": group["momentum"], **said}
    group["rule"] = fold(rule, said)
    group["momentum"] = group["rule"].beta1
    lr = group["lr"]
    if isinstance(lr, Tensor):
        if lr.ndim > 1 or not lr.is_floating_point():
            refuse("learning rate", lr, "a tensor lr must be floating-point, with no axis or one entry per replica")
        if lr.device.type == "cpu" and not torch.all(lr >= 0):
            refuse("learning rate", lr, "every lr must be a number >= 0")
    else:
        group["lr"] = real("lr", lr, least=0, what="learning rate")
    group["eps"] = real("eps", group["eps"], least=0)
    group["weight_decay"] = real("weight_decay", group["weight_decay"], least=0)
    for name in ("decoupled_weight_decay", "maximize", "capturable", "differentiable", "stochastic_rounding"):
        if not isinstance(group[name], bool):
            refuse(name, group[name], f"{name} must be True or False")
    for name in ("foreach", "fused"):
        if not any(group[name] is choice for choice in (True, False, None)):
            refuse(name, group[name], f"{name} must be True, False or None")
    if group["foreach"] and group["fused"]:
        refuse("foreach, fused", (True, True), "at most one of them can be True")
    if group["differentiable"] and (group["foreach"] or group["fused"]):
        refuse("differentiable", True, "autograd can see through neither foreach nor fused")
    if group["feasible"] is not None and not isinstance(group["feasible"], Feasible):
        refuse("feasible", group["feasible"], "feasible must be one of wagmf.feasible, such as Box(-1, 1)")
    if isinstance(group["feasible"], Everything):
        group["feasible"] = None
    if isinstance(lr, Tensor) and lr.ndim and not isinstance(group["feasible"], Box | NonNegative | None):
        right = "with one lr per replica only Box and NonNegative, since others would take all replicas for one point"
        refuse("feasible", group["feasible"], right)
    dtype = group["state_dtype"]
    if dtype not in (None, torch.float32, torch.float64, torch.bfloat16):
        refuse("state_dtype", dtype, "state_dtype must be torch.bfloat16, torch.float32, torch.float64 or None")


def _check_params(params: list[Any], lr: Any, feasible: Any) -> None:
    """Refuse parameters that occur twice, or do not have a leading axis of replicas where lr has one."""
    seen: set[int] = set()
    for param in (x[1] if isinstance(x, tuple) else x for x in params):
        if isinstance(param, Tensor):
            if id(param) in seen:
                refuse("params", f"a parameter of shape {tuple(param.shape)} twice", "each may occur once")
            seen.add(id(param))
            check_lr(lr, param)
            if param.is_complex() and getattr(feasible, "axis", None) is not None:
                refuse("feasible", feasible, "for complex parameters only sets that hold for the whole, axis=None")


def _clock(value: float, param: Tensor, group: dict[str, Any]) -> Tensor:
    """t or u: a float64 scalar, on the device only where the step is to be captured in a graph."""
    return torch.tensor(value, dtype=torch.float64, device=param.device if group["capturable"] else "cpu")


def _pack(optimizer: Optimizer, packed: dict[str, Any]) -> None:
    """Make plain values of what the base class has put into a checkpoint."""
    packed["state"] = {key: _own_clocks(state) for key, state in packed["state"].items()}
    for group in packed["param_groups"]:
        group["rule"] = group["rule"].to_dict()
        del group["feasible"]


def _own_clocks(state: Any) -> Any:
    """The state with clocks that are its own, and do not go on."""
    clocks = {"step", "window"} & state.keys() if isinstance(state, dict) else ()
    own = {name: state[name].clone() for name in clocks if isinstance(state[name], Tensor)}
    return {**state, **own} if own else state


def _watchers(optimizer: WAGMF) -> bool:
    """Whether somebody wants to know of a step; a class with a step of its own has been given hooks of its own."""
    return type(optimizer).step is WAGMF.step and bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )


def _real(x: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones, each adapted by itself, as torch.optim does."""
    return torch.view_as_real(x) if x.is_complex() else x
