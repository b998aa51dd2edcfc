"""Which parameters step together, remembered from step to step: to find out anew takes longer than many a kernel."""

import itertools
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from wagmf.arguments import refuse
from wagmf.feasible import Box, NonNegative
from wagmf.torch.batch import Batch, Unfit
from wagmf.torch.paths import Path, choose

__all__ = ["Clocks", "Roster", "Team", "check_lr"]

StateOf: TypeAlias = Callable[[Tensor, dict[str, Any]], dict[str, Any]]

_KEPT = ("m", "v", "peak")
_PATTERNS = 16  # for how many ways in which gradients are missing the teams are remembered


class Clocks:
    """t and u of the parameters of a group side by side, so that they are read and set at once.

    A parameter's state shows its own as "step" and "window": views of the table.

    >>> clocks = Clocks(2, torch.device("cpu"))
    >>> clocks.table[1] = torch.tensor([3.0, 2.0])
    >>> clocks.steps[1], clocks.windows[1]
    (tensor(3., dtype=torch.float64), tensor(2., dtype=torch.float64))
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.table = torch.zeros(count, 2, dtype=torch.float64, device=device)
        self.steps, self.windows = (list(column.unbind()) for column in self.table.unbind(1))
        self.numbers = self.table.numpy() if device.type == "cpu" and type(self.table) is Tensor else None

    def release(self, state: dict[str, Any], place: int) -> None:
        """Let go of clocks that belong to another place, before that is set."""
        for name, views in (("step", self.steps), ("window", self.windows)):
            if isinstance(state.get(name), Tensor) and state[name] is not views[place]:
                state[name] = state[name].clone()

    def adopt(self, state: dict[str, Any], place: int, start: float) -> None:
        """Let the state's clocks be those of this place, set to what they were, or to the start."""
        for name, views, first in (("step", self.steps, 0.0), ("window", self.windows, start)):
            if state.get(name) is not views[place]:
                views[place].copy_(torch.as_tensor(state.get(name, first), device=views[place].device))
                state[name] = views[place]


class Team:
    """Parameters of a group that take the same step, and the path that was chosen for them.

    >>> x = torch.zeros(3)
    >>> state, clocks = {"v": torch.zeros(3)}, Clocks(1, torch.device("cpu"))
    >>> clocks.adopt(state, 0, start=0.0)
    >>> Team([0], [x], [state], clocks).names
    ['v']
    """

    path: Path

    def __init__(self, places: list[int], params: list[Tensor], states: list[dict[str, Any]], clocks: Clocks) -> None:
        self.places, self.params, self.states, self.clocks = places, params, states, clocks
        self.names = [name for name in _KEPT if name in states[0]]
        self._steps = [clocks.steps[place] for place in places]
        self._windows = [clocks.windows[place] for place in places]
        self._rows = None if len(places) == len(clocks.steps) else torch.tensor(places, device=clocks.table.device)
        self._plain = all(type(x) in (Tensor, torch.nn.Parameter) and not x.is_complex() for x in params)
        self._set: tuple[bytes, Any, Any] | None = None  # the clocks as this team has set them

    def batch(self, group: dict[str, Any], grads: list[Tensor], scaling: tuple[Any, Any]) -> Batch | None:
        """The step the team takes now; None where its members no longer go together."""
        states = self.states
        try:
            steps, windows = [state["step"] for state in states], [state["window"] for state in states]
            m, v, peak = ([state[name] for state in states] if name in self.names else [] for name in _KEPT)
        except KeyError:  # somebody has emptied a state
            return None
        if not (all(map(operator.is_, steps, self._steps)) and all(map(operator.is_, windows, self._windows))):
            return None
        clock = self._clock()
        if clock is None:
            return None
        rows = [self.params, grads, m, v, peak]
        return Batch.of(group, *clock, rows if self._plain else _as_numbers(rows, group), *scaling)

    def take(self, batch: Batch) -> None:
        """Step, and set the clocks."""
        self._advance(batch, self.path.step(batch))

    def _clock(self) -> tuple[Any, Any] | None:
        """The number of the coming step and the window before it, if all members have the same.

        They are numbers, or where the host must not ask for them, tensors with an entry for every parameter.
        """
        numbers = self.clocks.numbers
        if numbers is None:
            t, u = self._table().unbind(1)
            return (t + 1, u) if len(self.places) > 1 else (t[0] + 1, u[0])
        numbers = numbers if self._rows is None else numbers[self.places]
        if self._set is not None and self._set[0] == numbers.tobytes():
            return self._set[1] + 1, self._set[2]
        pairs = numbers.tolist()
        t, u = pairs[0]
        return (t + 1, u) if pairs.count(pairs[0]) == len(pairs) else None

    def _table(self) -> Tensor:
        return self.clocks.table if self._rows is None else self.clocks.table[self._rows]

    def _advance(self, batch: Batch, u: Any) -> None:
        if self.clocks.numbers is not None:
            numbers, rows = self.clocks.numbers, slice(None) if self._rows is None else self.places
            numbers[rows] = (batch.t, u)
            self._set = (numbers[rows].tobytes(), batch.t, u)
            return
        before = self._table()
        after = torch.stack([batch.t.reshape(-1), u.reshape(-1)], dim=1)
        if batch.found_inf is not None:
            after = torch.where(batch.found_inf.to(before.device).reshape(()) != 0, before, after)
        if self._rows is None:
            before.copy_(after)
        else:
            self.clocks.table.index_copy_(0, self._rows, after)


class Roster:
    """What is known of a parameter group: its clocks, and its teams by which of the gradients are missing.

    >>> x = torch.zeros(3)
    >>> Roster([x]).holds([x]), Roster([x]).holds([x.clone()])
    (True, False)
    """

    def __init__(self, params: list[Tensor]) -> None:
        self.params = list(params)
        self.teams: dict[bytes, list[Team]] = {}
        self.stepped: list[Team] = []
        self._terms: tuple[Any, ...] = ()
        self._clocks: dict[torch.device, Clocks] = {}
        self._kept: list[Any] = []

    def holds(self, params: list[Tensor]) -> bool:
        """Whether this is the roster of these very parameters."""
        return len(params) == len(self.params) and all(map(operator.is_, params, self.params))

    def clocks(self, param: Tensor, group: dict[str, Any]) -> Clocks:
        """Those of the parameter: on the device only where the step is to be captured in a graph."""
        device = param.device if group["capturable"] else torch.device("cpu")
        if device not in self._clocks:
            self._clocks[device] = Clocks(len(self.params), device)
        return self._clocks[device]

    def disband(self) -> None:
        """Forget the teams, but not what CUDA graphs still use of theirs."""
        paths = [team.path for teams in self.teams.values() for team in teams]
        self._kept += [path.cache for path in paths if "captured" in path.cache]
        self.teams.clear()
        self.stepped = []

    def step(self, group: dict[str, Any], state_of: StateOf, scaling: tuple[Any, Any]) -> None:
        """Let every parameter that has a gradient take its step; ``state_of`` gives its state, made where missing."""
        lr = group["lr"]
        terms = (*_TERMS(group), lr.shape if isinstance(lr, Tensor) else None)
        if terms != self._terms or len(self.teams) > _PATTERNS:
            self._terms = terms
            self.disband()
        grads: list[Any] = [param.grad for param in self.params]
        missing = bytes(map(operator.is_, grads, itertools.repeat(None)))
        teams = self.teams.get(missing)
        if teams is not None:
            done = [new for team in teams for new in self._again(team, group, grads, state_of, scaling)]
        else:
            done = self._anew(range(len(grads)), group, grads, state_of, scaling)
        self.teams[missing] = self.stepped = done

    def _again(self, team: Team, group: dict[str, Any], grads: list[Any], *rest: Any) -> list[Team]:
        """Step the team of an earlier step, or those that its members form where they no longer go together."""
        given = grads if len(team.places) == len(grads) else [grads[place] for place in team.places]
        batch = team.batch(group, given, rest[-1])
        settled = team.path.name == "fused" or group["foreach"] or group["fused"] is False
        odd = team.path.name != "fused" and any(grad.layout != torch.strided for grad in given)
        if batch is None or not settled or odd:  # perhaps the kernel can take it today
            return self._anew(team.places, group, grads, *rest)
        try:
            team.take(batch)
        except Unfit:
            return self._anew(team.places, group, grads, *rest)
        return [team]

    def _anew(
        self,
        places: Iterable[int],
        group: dict[str, Any],
        grads: list[Any],
        state_of: StateOf,
        scaling: tuple[Any, Any],
    ) -> list[Team]:
        """Form teams of the parameters in these places, and let them step."""
        alike: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        places = [place for place in places if grads[place] is not None]
        for place in places:
            check_lr(group["lr"], self.params[place])
            self.clocks(self.params[place], group).release(state_of(self.params[place], group), place)
        for place in places:
            param, grad, clocks = self.params[place], grads[place], self.clocks(self.params[place], group)
            clocks.adopt(state_of(param, group), place, group["rule"].start)
            now = () if clocks.numbers is None else tuple(clocks.numbers[place].tolist())
            kind = (param.device, param.dtype, type(param), grad.dtype, type(grad))
            alike[(*now, *kind, _order(param) == _order(grad))].append(place)  # those laid out alike fit the kernel
        teams = []
        for together in alike.values():
            teams += self._teams_of(together, group, grads, state_of, scaling)
        return teams

    def _teams_of(
        self, places: list[int], group: dict[str, Any], grads: list[Any], state_of: StateOf, scaling: tuple[Any, Any]
    ) -> list[Team]:
        params = [self.params[place] for place in places]
        clocks = self.clocks(params[0], group)
        team = Team(places, params, [state_of(param, group) for param in params], clocks)
        batch = team.batch(group, [grads[place] for place in places], scaling)
        assert batch is not None, "its members have just been found to go together"
        team.path = choose(batch, foreach=group["foreach"], fused=group["fused"])
        if clocks.numbers is None and team.path.name != "fused" and len(places) > 1:
            # Only the kernel takes many clocks.
            alone = [self._teams_of([place], group, grads, state_of, scaling) for place in places]
            return [team for teams in alone for team in teams]
        team.take(batch)
        return [team]


_TERMS = operator.itemgetter(
    "rule", "feasible", "stochastic_rounding", "differentiable", "foreach", "fused", "capturable"
)  # what the choice of a path depends on


def check_lr(lr: Any, param: Tensor) -> None:
    """Refuse a step size that does not go with a parameter.

    >>> check_lr(torch.ones(2), torch.zeros(3, 2))
    Traceback (most recent call last):
    wagmf.arguments.Refused: Invalid learning rate: 'a tensor of shape (2,)' (it must have one entry per replica, as the
    leading axis of every parameter; one is (3, 2))
    """
    if not isinstance(lr, Tensor) or lr.ndim == 0:
        return
    if lr.ndim > 1 or param.ndim == 0 or param.shape[0] != lr.numel():
        right = "it must have one entry per replica, as the leading axis of every parameter; one is"
        refuse("learning rate", f"a tensor of shape {tuple(lr.shape)}", f"{right} {tuple(param.shape)}")


def _order(x: Tensor) -> tuple[int, ...]:
    """How the numbers lie in memory; the stride of an axis of length one says nothing."""
    return tuple(stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1) if x.numel() else ()


def _as_numbers(rows: list[list[Any]], group: dict[str, Any]) -> list[list[Tensor]]:
    """Complex numbers as pairs of real ones, each adapted by itself, as torch.optim does; of shards what is here."""
    local = group["feasible"] is None or isinstance(group["feasible"], Box | NonNegative)
    local = local and not (isinstance(group["lr"], Tensor) and group["lr"].ndim)
    if local and all(_sharded_alike(*each) for each in zip(*filter(None, rows), strict=True)):
        rows = [[x._local_tensor for x in row] for row in rows]
    return [[torch.view_as_real(x) if x.is_complex() else x for x in row] for row in rows]


def _sharded_alike(param: Any, *others: Any) -> bool:
    """Whether every process may step its own part by itself."""
    module = sys.modules.get("torch.distributed.tensor")  # without which there are no shards
    if module is None or not all(isinstance(x, module.DTensor) for x in (param, *others)):
        return False
    summed = any(place.is_partial() for place in param.placements)
    return not summed and all(x.placements == param.placements and x.device_mesh == param.device_mesh for x in others)
