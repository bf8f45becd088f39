"""What the arguments of the laboratory name: algorithms, options, levels, shapes; and what to do if they do not fit."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from viewkeeper.algorithms.registry import ALGORITHMS, Options, Scenario
from viewkeeper.commands.lab.arguments import LEVELS
from viewkeeper.config_problems import nearest
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import UsageError
from viewkeeper.simulator.history import History
from viewkeeper.simulator.laboratory import Subject, fits, level_named
from viewkeeper.simulator.workload import Shape


def chosen_subject(place: str, name: str, options: Iterable[str]) -> Subject:
    """The algorithm of that name with these options (``name=value``); raises UsageError."""
    if name not in ALGORITHMS:
        raise UsageError.at(place, f"there is no algorithm {name}", nearest(name, ALGORITHMS))
    return Subject.of(name, dict(_option(place, name, option) for option in options))


def _option(place: str, algorithm: str, text: str) -> tuple[str, int | bool]:
    name, _, value = text.partition("=")
    known = ALGORITHMS[algorithm].options
    if name not in known:
        remedy = nearest(name, known) or f"{algorithm} has no options"
        raise UsageError.at(place, f"{algorithm} has no option {name}", remedy)
    if known[name] is bool and value in ("true", "false"):
        return name, value == "true"
    if known[name] is int and value.isascii() and value.isdigit() and int(value) > 0:
        return name, int(value)
    wanted = _wanted(known[name])
    raise UsageError.at(place, f"option {name} must be {wanted}, not {value!r}", f"write {name}=… with one")


def chosen_level(place: str, name: str) -> Level:
    """The level of that name; raises UsageError."""
    level = level_named(name)
    if level is None or level is Level.INCONSISTENT:
        raise UsageError.at(place, f"there is no level {name}", nearest(name, LEVELS))
    return level


def chosen_shape(place: str, subject: Subject, args: argparse.Namespace) -> Shape:
    """The shape of workload that the arguments ask for; raises UsageError if the algorithm cannot keep its view."""
    relations = args.relations or (args.sources if args.sources > 1 else 3)
    if relations < args.sources:
        what = f"{relations} relations cannot be in {args.sources} sources"
        raise UsageError.at(place, what, "leave --relations out, or give more of them")
    scenario = Scenario(args.scenario)
    if scenario is Scenario.GLOBAL and args.sources == 1:
        raise UsageError.at(place, "a global transaction needs several sources", "give --sources 2 or more")
    shape = Shape(args.sources, relations, args.updates, scenario, keyed=not args.no_keys, values=2)
    if not fits(subject, shape):
        raise UsageError.at(place, f"{subject} cannot keep such a view", _remedy(subject, shape))
    return shape


def _remedy(subject: Subject, shape: Shape) -> str:
    """Which argument makes the view one that the algorithm can keep."""
    keyed = Shape(shape.sources, shape.relations)
    if fits(subject, keyed):
        return "it needs keys: leave out --no-keys"
    return f"it needs all relations in one source: give --sources 1 --relations {shape.relations}"


def checked_history(place: str, history: History) -> Subject:
    """The algorithm of a saved history; raises UsageError if it is not known or cannot keep the view."""
    if history.algorithm not in ALGORITHMS:
        what = f"there is no algorithm {history.algorithm}"
        raise UsageError.at(f"{place}: algorithm", what, nearest(history.algorithm, ALGORITHMS))
    _check_options(f"{place}: options", history.algorithm, history.options)
    subject = Subject.of(history.algorithm, history.options)
    for what, remedy in subject.entry.problems(history.workload.tiny):
        raise UsageError.at(f"{place}: sql", what, remedy)
    return subject


def _check_options(place: str, algorithm: str, options: Options) -> None:
    known = ALGORITHMS[algorithm].options
    for name, value in options.items():
        if name not in known:
            raise UsageError.at(place, f"{algorithm} has no option {name}", nearest(name, known))
        if type(value) is not known[name] or (known[name] is int and value < 1):
            said = str(value).lower()
            raise UsageError.at(place, f"{name} cannot be {said}", f"it must be {_wanted(known[name])}")


def _wanted(kind: type) -> str:
    return "true or false" if kind is bool else "a whole number from 1"
