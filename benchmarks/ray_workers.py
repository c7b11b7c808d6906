"""One run over many workers: Ray actors with an engine each, and what they finish, as it comes."""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from stepsearch.conf.build import build_engine
from stepsearch.search.errors import ConfigurationError, StepsearchError
from stepsearch.search.provenance import describe
from stepsearch.search.trace import encode
from stepsearch.search.types import Problem

_log = logging.getLogger(__name__)


class Shard:
    """An engine in a process of its own, with many problems in flight.

    Args:
        config: the run's configuration, as plain data.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = OmegaConf.create(config)

    async def start(self) -> int:
        """Build the engine; the number of this process."""
        self._engine = build_engine(self._config)
        self._provenance = describe(self._engine.settings)
        return os.getpid()

    async def solve(self, problem: Problem) -> str:
        """Solve a problem; its trace. What goes wrong with it stands in there."""
        [solution] = [found async for found in self._engine.asolve_many([problem])]
        return encode(solution, self._provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a run is laid out; the group `ray` of the configuration.

    Attributes:
        address: of a cluster to join; None starts one on this machine and ends it afterwards.
        workers: actors.
        cpus, gpus: of each actor, as Ray counts them.
    """

    address: str | None
    workers: int
    cpus: float
    gpus: float


def solve_sharded(config: DictConfig, problems: Sequence[Problem]) -> Iterator[str]:
    """Solve problems on Ray actors; yields each trace as it comes, in any order.

    An actor has at most `concurrency` problems in flight, and gets another when one is finished.
    Problems that were open when an actor was lost are given to others, once: what is lost twice is
    left out and said. Seeds come from the ids of problems, so results do not depend on who solves.

    Raises:
        ConfigurationError: Ray is not installed, cannot be reached, or a setting does not fit.
    """
    layout = Layout(**OmegaConf.to_container(config.ray))  # type: ignore[arg-type]
    if layout.workers < 1:
        raise ConfigurationError(f"ray.workers={layout.workers} must be at least 1")
    ray = _import_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        _start(ray, layout.address)
    try:
        require_room(ray.cluster_resources(), layout)
        yield from _Pool(ray, config, layout).run(problems)
    finally:
        if is_ours:
            ray.shutdown()


def _start(ray: Any, address: str | None) -> None:
    """Join the cluster, or start one on this machine."""
    try:
        ray.init(
            address=address,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    except Exception as error:  # Ray raises bare ones, too
        reason = str(error).splitlines()[0]
        if address is not None:
            raise ConfigurationError(
                f"ray.address={address!r}: {reason}; correct it, or set RAY_AUTH_MODE=token if "
                "the cluster asks for Ray's token"
            ) from error
        raise ConfigurationError(
            f"no Ray cluster could be started on this machine ({reason}); try again when it is "
            "less busy, or start one with `ray start --head` and set ray.address=auto"
        ) from error


def require_room(there: Mapping[str, float], layout: Layout) -> None:
    """Refuse workers that this machine never has room for; a cluster that was joined may grow.

    Args:
        there: processors and GPUs, as `ray.cluster_resources` names them.
        layout: what is asked for.

    Raises:
        ConfigurationError: there are fewer.
    """
    if layout.address is not None:
        return
    for setting, name in (("cpus", "CPU"), ("gpus", "GPU")):
        each, most = getattr(layout, setting), there.get(name, 0)
        if layout.workers * each > most:
            raise ConfigurationError(
                f"ray.workers={layout.workers} with ray.{setting}={each:g} each need "
                f"{layout.workers * each:g} {name}s, and this machine has {most:g}; lower one of "
                "them (a worker may have a part of one)"
            )


def _import_ray() -> Any:
    try:
        import ray  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise ConfigurationError(
            "workers=ray needs Ray: pip install 'stepsearch[scale]'"
        ) from error
    return ray


class _Pool:
    """The actors of a run, and the problems they have in flight."""

    def __init__(self, ray: Any, config: DictConfig, layout: Layout) -> None:
        self._ray, self._layout = ray, layout
        plain = OmegaConf.to_container(config, resolve=True)
        self._config = {**plain, "trace": None}  # type: ignore[dict-item]
        self._window = int(config.concurrency)
        self._open: dict[Any, tuple[Any, Problem]] = {}
        self._lost: Counter[str] = Counter()

    def run(self, problems: Sequence[Problem]) -> Iterator[str]:
        waiting = deque(problems)
        actors = [self._start() for _ in range(min(self._layout.workers, len(problems)))]
        self._told(actors)
        while waiting or self._open:
            self._hand_out(waiting, actors)
            ready, _ = self._ray.wait(list(self._open), num_returns=1)
            actor, problem = self._open.pop(ready[0])
            try:
                yield self._ray.get(ready[0])
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            except self._ray.exceptions.RayError as error:
                self._replace(actor, actors)
                self._give_back(problem, waiting, error)

    def _start(self) -> Any:
        options = {
            "num_cpus": self._layout.cpus,
            "num_gpus": self._layout.gpus,
            "max_concurrency": self._window,
        }
        return self._ray.remote(Shard).options(**options).remote(self._config)

    def _told(self, actors: Sequence[Any]) -> None:
        """Wait until the actors have their models."""
        try:
            pids = self._ray.get([actor.start.remote() for actor in actors])
        except self._ray.exceptions.RayTaskError as error:
            raise _cause(error) from error
        _log.info("%d workers, processes %s", len(actors), " ".join(map(str, pids)))

    def _hand_out(self, waiting: deque[Problem], actors: Sequence[Any]) -> None:
        """Fill the windows, the emptiest first."""
        load = Counter(id(actor) for actor, _ in self._open.values())
        while waiting:
            actor = min(actors, key=lambda actor: load[id(actor)])
            if load[id(actor)] >= self._window:
                return
            load[id(actor)] += 1
            problem = waiting.popleft()
            self._open[actor.solve.remote(problem)] = (actor, problem)

    def _replace(self, actor: Any, actors: list[Any]) -> None:
        if actor in actors:
            _log.warning("a worker was lost; another one takes its place")
            actors.remove(actor)
            new = self._start()
            self._told([new])
            actors.append(new)

    def _give_back(self, problem: Problem, waiting: deque[Problem], error: Exception) -> None:
        self._lost[problem.id] += 1
        if self._lost[problem.id] > 1:
            reason = str(error).splitlines()[0]
            _log.error("problem %s was lost with two workers: %s", problem.id, reason)
        else:
            waiting.appendleft(problem)


def _cause(error: Any) -> Exception:
    """Our own error inside Ray's."""
    return error.cause if isinstance(error.cause, StepsearchError) else error
