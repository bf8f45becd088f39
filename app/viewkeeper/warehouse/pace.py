"""How often views are folded: a cut costs the change, a fold costs the view."""

from __future__ import annotations

from datetime import timedelta

AUTO_GAP = 60.0
AUTO_SHARE = 0.1


class FoldPace:
    """Says when a fold is due under the setting ``auto``, ``every_cut`` or a duration.

    ``auto`` folds at most once a minute and for at most a tenth of the time. Clocks are the caller's, in
    seconds.
    """

    def __init__(self, setting: str | timedelta = "auto"):
        self._every_cut = setting == "every_cut"
        self._auto = setting == "auto"
        self._gap = setting.total_seconds() if isinstance(setting, timedelta) else AUTO_GAP
        assert self._every_cut or self._auto or isinstance(setting, timedelta), f"no fold setting: {setting!r}"
        self._last: float | None = None  # when the last fold began; at first, when we were first asked
        self._now = 0.0

    def due(self, now: float) -> bool:
        """Whether a fold may start now."""
        self._now = now
        if self._every_cut:
            return True
        if self._last is None:
            self._last = now
        return now - self._last >= self._gap

    def spent(self, seconds: float) -> None:
        """Notes that a fold, begun when ``due`` was last asked, took that long."""
        self._last = self._now
        if self._auto:
            self._gap = max(AUTO_GAP, seconds / AUTO_SHARE)
