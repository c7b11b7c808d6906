"""Configuration: every file fits its class, and what does not exist is named with what does."""

import importlib
import inspect
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import stepsearch.conf
from stepsearch import Budget, ConfigurationError, SamplingParams, solve
from stepsearch.api import engine_for
from stepsearch.conf.build import build, build_engine, load_config
from stepsearch.conf.options import options
from stepsearch.search.strategies.beam import Beam
from stepsearch.search.strategies.best_of_n import BestOfN

CONF = Path(stepsearch.conf.__file__).parent
GROUPS = ("policy", "verifier", "search", "task", "budget")
FILES = [(group, option) for group in GROUPS for option in options(group)]
KEYWORDS = {"_target_", "_convert_", "_recursive_"}


@pytest.mark.parametrize(("group", "option"), FILES)
def test_every_file_has_exactly_the_parameters_of_its_class(group: str, option: str) -> None:
    config = OmegaConf.to_container(load_config([f"{group}={option}"])[group], resolve=False)
    module, name = config["_target_"].rsplit(".", 1)
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    assert set(config) - KEYWORDS <= set(parameters)
    required = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
    assert required <= set(config)
    if group == "search":
        assert set(config) - KEYWORDS == set(parameters), "every parameter can be seen and set"


def test_strategies_and_their_files_are_one_to_one() -> None:
    folder = CONF.parent / "search" / "strategies"
    modules = {p.stem for p in folder.glob("*.py")} - {
        "__init__",
        "checks",
        "priors",
        "puct",
        "ranking",
        "simulations",
    }
    assert set(options("search")) == modules


EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_compose_and_leave_one_gpu_enough(name: str) -> None:
    config = load_config([f"+experiment={name}"])
    assert config.policy._target_.endswith("VllmPolicy")
    assert config.verifier._target_.endswith("VllmVerifier")
    assert config.policy.engine.gpu_memory + config.verifier.engine.gpu_memory <= 0.9
    assert config.policy.engine.max_seqs == load_config(["policy=vllm"]).policy.engine.max_seqs
    assert config.verifier.engine.max_length <= config.policy.engine.max_length


@pytest.mark.parametrize("setting", ["adapter=folder", "device=cuda:0"])
def test_what_vllm_cannot_honour_is_refused(setting: str) -> None:
    config = load_config(["verifier=qwen_prm_vllm", f"verifier.{setting}"])
    with pytest.raises(ConfigurationError, match=setting.split("=")[0]):
        build(config, "verifier")


def test_a_setting_that_an_engine_lacks_is_named() -> None:
    config = load_config(["policy=vllm", "+policy.engine.max_sequences=3"])
    with pytest.raises(ConfigurationError, match="engine has no max_sequences; it has"):
        build(config, "policy")


def test_defaults() -> None:
    config = load_config()
    assert build(config, "search") == Beam()
    assert build(config, "budget") == Budget()
    assert build(config, "sampling") == SamplingParams(max_tokens=512)
    assert load_config(["search=best_of_n"]).search.n == BestOfN().n
    assert (config.policy.model, config.policy.adapter) == ("embedded", "embedded/policy")
    assert config.policy.prompt_format is None, "the adapter's own"
    assert (config.verifier.model, config.verifier.base) == ("embedded/prm", None)
    assert load_config(["verifier=orm"]).verifier.model == "embedded/orm"
    base = load_config(["policy=embedded_base"]).policy
    assert (base.model, base.adapter, len(base.prompt_format.examples)) == ("embedded", None, 2)


def test_the_defaults_of_the_face_are_those_of_the_configuration() -> None:
    groups = {name: option for d in _defaults() for name, option in d.items()}
    for function in (solve, engine_for):
        given = inspect.signature(function).parameters
        for name in ("policy", "verifier", "search", "task"):
            assert given[name].default == groups[name]


def _defaults() -> list[dict[str, str]]:
    found = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    assert isinstance(found, dict)
    return [entry for entry in found["defaults"] if isinstance(entry, dict)]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("search=beem", ["search=beem", "Did you mean beam", "best_of_n"]),
        ("verifier=rul", ["Did you mean rule", "line_prm"]),
        ("search.widht=3", ["search.widht", "Did you mean search.width"]),
        ("temperature=1", ["temperature", "sampling.temperature"]),
        ("budget.policy_token=3", ["Did you mean budget.policy_tokens"]),
        ("search.n=", ["search"]),
        ("search.n=0", ["search.n=0", "at least 1"]),
        ("search.n=many", ["search"]),
        ("sampling.top_p=1.5", ["sampling.top_p=1.5", "at most 1"]),
        ("budget.policy_tokens=-1", ["budget.policy_tokens=-1"]),
        ("select=best2", ["select='best2'", "majority"]),
        ("search._target_=nowhere.Nothing", ["search", "nowhere"]),
    ],
)
def test_what_does_not_exist_or_fit_is_named(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build_engine(load_config([override]), policy=object(), verifier=None, task=None)
    for word in words:
        assert word in str(caught.value)


def test_a_package_on_the_search_path_adds_options() -> None:
    config = load_config(["hydra.searchpath=[pkg://support.worldconf]", "policy=world"])
    assert build(config, "policy").spec.name == "scripted"


def test_any_class_by_its_path() -> None:
    config = load_config(["search._target_=builtins.dict", "~search.width", "search.n=3"])
    assert build(config, "search") == {"n": 3, "lookahead": 0, "max_steps": 40}


def test_members_of_an_ensemble_are_changed_added_and_taken_out() -> None:
    def members(*overrides: str) -> tuple[list[str], dict[str, float]]:
        found = load_config(["verifier=ensemble", *overrides]).verifier
        return [found.members[n]["_target_"].split(".")[-1] for n in found.members], found.weights

    shipped = (["RuleVerifier", *["TrainedVerifier"] * 2], {"rule": 1, "prm": 1, "orm": 1})
    assert members() == shipped
    assert members("verifier@verifier.members.prm=rule")[0][:2] == ["RuleVerifier"] * 2
    more = members("+verifier@verifier.members.x=rule", "+verifier.weights.x=2")
    assert (len(more[0]), more[1]["x"]) == (4, 2)
    less = members("~verifier@verifier.members.rule", "~verifier.weights.rule")
    assert (less[0], list(less[1])) == (["TrainedVerifier"] * 2, ["prm", "orm"])
