"""Groups of views, the levels asked for, and the sources that transactions may span: what a configuration may say.

groups: {money: [accounts, transfers], stock: {views: [shelf], level: complete}}      # or auto; left out, one group
global_txn: [[shop, crm]]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationInfo

from viewkeeper.algorithms.registry import ALGORITHMS, SWEEP, Scenario
from viewkeeper.config_problems import nearest
from viewkeeper.config_sources import KINDS
from viewkeeper.config_values import Name, Section
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import Problem

ALL = "all"
"""The group of the views that are in no other."""

AUTO: Literal["auto"] = "auto"

LEVELS = {str(level): level for level in Level if level > Level.INCONSISTENT}


def _level(value: Any) -> Level:
    level = LEVELS.get("complete-N" if value == "complete_n" else value) if isinstance(value, str) else None
    if level is None:
        raise ValueError(f"there is no level {value!r}; {nearest(str(value), LEVELS)}")
    return level


AskedLevel = Annotated[Level, PlainValidator(_level)]


class GroupConfig(Section):
    """Views that are to agree with each other; ``level`` is the least that each of them must reach."""

    views: Annotated[list[str], Field(min_length=1)]
    level: AskedLevel | None = None


def _with_views(value: Any) -> Any:
    """``[a, b]`` is short for ``{views: [a, b]}``."""
    return {"views": value} if isinstance(value, list) else value


_NAMED: TypeAdapter[dict[str, GroupConfig]] = TypeAdapter(
    dict[Name, Annotated[GroupConfig, BeforeValidator(_with_views)]]
)


def _groups(value: Any, info: ValidationInfo) -> Literal["auto"] | dict[str, GroupConfig]:
    if value == AUTO:
        return AUTO
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be auto, or groups with their views such as {money: [accounts, transfers]}")
    return _NAMED.validate_python(value, strict=True, context=info.context)


Groups = Annotated[Literal["auto"] | dict[str, GroupConfig], PlainValidator(_groups)]
"""Left out, it is an empty mapping: no view is in a group of its own choice, so all are in ``all``."""

SpannedSources = list[str]
"""Sources that one transaction may span."""


def promised(algorithm: str) -> Level:
    """The level that every history of the sources reaches; a row of the ViewUpdateTable is one transaction to it."""
    return ALGORITHMS[algorithm].promise.get(Scenario.LOCAL, Level.INCONSISTENT)


def promises_nothing(algorithm: str) -> bool:
    """Whether what a view shows may be wrong for ever: then it cannot agree with others."""
    return promised(algorithm) == Level.INCONSISTENT


def group_problems(tree: Mapping[str, Any], file: str) -> Iterator[Problem]:
    """What is wrong with groups, levels and global transactions, as far as the file alone tells."""
    file_ = _File(tree, file)
    yield from file_.level_problems()
    yield from file_.group_problems()
    yield from file_.global_problems()


@dataclass(frozen=True)
class _File:
    """A configuration's values before they are known to be valid: what is not well formed is told of elsewhere."""

    tree: Mapping[str, Any]
    file: str

    def level_problems(self) -> Iterator[Problem]:
        """Levels that a view asks for and its algorithm does not promise."""
        for view, section in self._sections("views").items():
            asked, algorithm = _valid_level(section), _algorithm(section)
            if asked is not None and algorithm is not None and promised(algorithm) < asked:
                what = f"{_says(algorithm)}, not {asked}"
                yield self._problem(f"views.{view}.level", what, f"{_less(algorithm)}, or use {_that_serve(asked)}")

    def group_problems(self) -> Iterator[Problem]:
        groups = self._groups()
        first: dict[str, str] = {}
        for group, section in groups.items():
            place = f"groups.{group}"
            for view in _views(section):
                if view not in self._names("views"):
                    yield self._problem(place, f"there is no view {view}", nearest(view, self._names("views")))
                elif first.setdefault(view, group) != group:
                    what = f"view {view} is already in group {first[view]}"
                    yield self._problem(place, what, "a view is in one group; take it out of one of them")
            yield from self._twice(place, _views(section))
            yield from self._lonely(place, _views(section))
            yield from self._too_weak(place, section)
        yield from self._rest(groups, first)

    def _twice(self, place: str, views: Sequence[str]) -> Iterator[Problem]:
        for view in dict.fromkeys(v for v in views if views.count(v) > 1):
            yield self._problem(place, f"view {view} stands twice", "name it once")

    def _lonely(self, place: str, views: Sequence[str]) -> Iterator[Problem]:
        """Views that promise nothing, with others that would have to agree with them."""
        for view in dict.fromkeys(views):
            algorithm = _algorithm(self._sections("views").get(view, {}))
            if len(set(views)) > 1 and algorithm is not None and promises_nothing(algorithm):
                what = f"view {view} is kept by {algorithm}, which promises nothing, so no other view can agree with it"
                yield self._problem(place, what, f"take it out (it is a group of its own), or use {SWEEP}")

    def _too_weak(self, place: str, section: Any) -> Iterator[Problem]:
        asked = _valid_level(section) if isinstance(section, Mapping) else None
        if asked is None:
            return
        for view in dict.fromkeys(_views(section)):
            algorithm = _algorithm(self._sections("views").get(view, {}))
            if view in self._sections("views") and algorithm is not None and promised(algorithm) < asked:
                what = f"view {view} cannot serve it: {_says(algorithm)}, not {asked}"
                remedy = f"{_less(algorithm)}, or keep the view by {_that_serve(asked)}"
                yield self._problem(f"{place}.level", what, remedy)

    def _rest(self, groups: Mapping[str, Any], grouped: Collection[str]) -> Iterator[Problem]:
        """Views in no group, where the group that they would form has its name taken."""
        algorithms = {view: _algorithm(section) for view, section in self._sections("views").items()}
        left = [v for v, a in algorithms.items() if v not in grouped and a is not None and not promises_nothing(a)]
        if ALL in groups and left:
            what = f"views in no group form a group of this name: {', '.join(left)}"
            yield self._problem(f"groups.{ALL}", what, "name this one otherwise, or put all views in groups")

    def global_problems(self) -> Iterator[Problem]:
        sets = self.tree.get("global_txn")
        for i, sources in enumerate(sets if isinstance(sets, list) else []):
            if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
                continue
            place = f"global_txn.{i}"
            if len(set(sources)) < 2:
                yield self._problem(place, "a transaction spans at least two sources", "name them all, each once")
            for source in dict.fromkeys(sources):
                yield from self._spanned(place, source)

    def _spanned(self, place: str, source: str) -> Iterator[Problem]:
        known = self._names("sources")
        if source not in known:
            yield self._problem(place, f"there is no source {source}", nearest(source, known))
        elif _format(self._sections("sources").get(source, {})) == "debezium":
            what = f"the messages of {source} are Debezium's, which do not tell of transactions over several sources"
            yield self._problem(place, what, "leave it out; only sources of format native can have such transactions")

    def _groups(self) -> dict[str, Any]:
        groups = self.tree.get("groups")
        return dict(groups) if isinstance(groups, dict) else {}

    def _names(self, key: str) -> list[str]:
        sections = self.tree.get(key)
        return list(sections) if isinstance(sections, dict) else []

    def _sections(self, key: str) -> dict[str, Mapping[str, Any]]:
        sections = self.tree.get(key)
        return {n: s for n, s in sections.items() if isinstance(s, dict)} if isinstance(sections, dict) else {}

    def _problem(self, place: str, what: str, remedy: str) -> Problem:
        return Problem(f"{self.file}: {place}", what, remedy)


def _views(section: Any) -> list[str]:
    """The views of a group, as far as they can be read."""
    views = section.get("views") if isinstance(section, Mapping) else section
    return [view for view in views if isinstance(view, str)] if isinstance(views, list) else []


def _valid_level(section: Mapping[str, Any]) -> Level | None:
    try:
        return _level(section["level"])
    except (KeyError, ValueError):
        return None


def _algorithm(section: Mapping[str, Any]) -> str | None:
    """The algorithm that a view's section names, if there is such a one."""
    name = section.get("algorithm", SWEEP)
    return name if isinstance(name, str) and name in ALGORITHMS else None


def _format(section: Mapping[str, Any]) -> Any:
    kind = KINDS.get(str(section.get("kind")))
    return section.get("format", None if kind is None else kind.model_fields["format"].default)


def _says(algorithm: str) -> str:
    level = promised(algorithm)
    return f"{algorithm} promises {level if level else 'nothing'}"


def _less(algorithm: str) -> str:
    return "ask for less" if promised(algorithm) else "leave it out"


def _that_serve(asked: Level) -> str:
    """The algorithms that promise a level."""
    *others, last = [name for name in ALGORITHMS if promised(name) >= asked]
    return f"{', '.join(others)} or {last}"
