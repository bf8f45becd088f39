"""Names given on the command line, against those of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.config import Config
from viewkeeper.config_problems import nearest
from viewkeeper.errors import Problem, UsageError


def require_view(config: Config, name: str) -> None:
    """Raises UsageError unless the configuration has that view."""
    if name not in config.views:
        raise UsageError.at(config.file, f"has no view {name}", nearest(name, config.views))


def require_views(config: Config, names: Iterable[str]) -> None:
    """Raises UsageError with every name that is no view of the configuration."""
    unknown = [name for name in dict.fromkeys(names) if name not in config.views]
    if unknown:
        raise UsageError(Problem(config.file, f"has no view {n}", nearest(n, config.views)) for n in unknown)


def require_source(config: Config, name: str) -> None:
    """Raises UsageError unless the configuration has that source."""
    if name not in config.sources:
        raise UsageError.at(config.file, f"has no source {name}", nearest(name, config.sources))
