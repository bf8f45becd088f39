"""PostgreSQL's functions of dates and timestamps, on single values. Every timestamp is one in UTC.

What it reports as an error, and a date before the year 1, is NULL (None).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from viewkeeper.algebra.types import Type, decimal

Parts = Callable[[datetime], int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _microseconds(at: datetime) -> int:
    """Within the minute."""
    return at.second * 1_000_000 + at.microsecond


_PARTS: dict[str, tuple[Parts, Type]] = {
    "millennium": (lambda at: (at.year + 999) // 1000, decimal(2, 0)),
    "century": (lambda at: (at.year + 99) // 100, decimal(3, 0)),
    "decade": (lambda at: at.year // 10, decimal(3, 0)),
    "year": (lambda at: at.year, decimal(4, 0)),
    "isoyear": (lambda at: at.isocalendar().year, decimal(5, 0)),
    "quarter": (lambda at: (at.month + 2) // 3, decimal(1, 0)),
    "month": (lambda at: at.month, decimal(2, 0)),
    "week": (lambda at: at.isocalendar().week, decimal(2, 0)),
    "day": (lambda at: at.day, decimal(2, 0)),
    "doy": (lambda at: at.timetuple().tm_yday, decimal(3, 0)),
    "dow": (lambda at: at.isoweekday() % 7, decimal(1, 0)),
    "isodow": (lambda at: at.isoweekday(), decimal(1, 0)),
    "hour": (lambda at: at.hour, decimal(2, 0)),
    "minute": (lambda at: at.minute, decimal(2, 0)),
    "second": (_microseconds, decimal(8, 6)),
    "milliseconds": (_microseconds, decimal(8, 3)),
    "microseconds": (_microseconds, decimal(8, 0)),
    "epoch": (lambda at: (at - _EPOCH) // _MICROSECOND, decimal(18, 6)),
}
"""What can be extracted: as an integer in units of its type's last digit, and the type that ``extract`` gives it."""

OF_DAYS = frozenset(_PARTS) - {"hour", "minute", "second", "milliseconds", "microseconds"}
"""What ``extract`` takes from a date."""


def part_type(field: str, of_date: bool) -> Type:
    """The type of ``extract(field FROM …)``."""
    return decimal(12, 0) if field == "epoch" and of_date else _PARTS[field][1]


def extracted(field: str, at: date, of: Type) -> Decimal:
    """``extract(field FROM at)``, of the type that ``part_type`` gives."""
    part, _ = _PARTS[field]
    units = part(_instant(at))
    if field == "epoch" and of.scale == 0:
        units //= 1_000_000
    return Decimal(units).scaleb(-of.scale)


def date_part(field: str, at: date) -> float:
    """``date_part(field, at)``: a double, by the same floating-point steps as PostgreSQL's."""
    instant = _instant(at)
    match field:
        case "second":
            return instant.second + instant.microsecond / 1_000_000.0
        case "milliseconds":
            return instant.second * 1000.0 + instant.microsecond / 1000.0
        case "epoch":
            return float(_PARTS["epoch"][0](instant) / 1_000_000.0)
    return float(_PARTS[field][0](instant))


def _instant(at: date) -> datetime:
    return at.astimezone(UTC) if isinstance(at, datetime) else datetime(at.year, at.month, at.day, tzinfo=UTC)


def _from_year(year: int, at: datetime) -> datetime | None:
    return _day(at).replace(year=year, month=1, day=1) if year >= 1 else None


def _day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def _week(at: datetime) -> datetime:
    return _day(at) - timedelta(days=at.weekday())


TRUNCATIONS: dict[str, Callable[[datetime], datetime | None]] = {
    "millennium": lambda at: _from_year((at.year - 1) // 1000 * 1000 + 1, at),
    "century": lambda at: _from_year((at.year - 1) // 100 * 100 + 1, at),
    "decade": lambda at: _from_year(at.year // 10 * 10, at),
    "year": lambda at: _from_year(at.year, at),
    "quarter": lambda at: _day(at).replace(month=(at.month - 1) // 3 * 3 + 1, day=1),
    "month": lambda at: _day(at).replace(day=1),
    "week": _week,
    "day": _day,
    "hour": lambda at: at.replace(minute=0, second=0, microsecond=0),
    "minute": lambda at: at.replace(second=0, microsecond=0),
    "second": lambda at: at.replace(microsecond=0),
    "milliseconds": lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000),
    "microseconds": lambda at: at,
}
FIELDS = tuple(_PARTS)


def truncated(field: str, at: datetime) -> datetime | None:
    """``date_trunc(field, at)`` in UTC."""
    return TRUNCATIONS[field](at.astimezone(UTC))


def make_date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except (ValueError, OverflowError):
        return None


# ---- to_char

_WORD = re.compile(r'"([^"\\]*)"|([A-Za-z0-9.]+)|([^"\\A-Za-z0-9.]+|\.)')
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_DAYS = "MonTueWedThuFriSatSun"


def _hour12(at: datetime) -> str:
    return f"{(at.hour + 11) % 12 + 1:02}"


def _named(names: str, number: Callable[[datetime], int], case: Callable[[str], str]) -> Callable[[datetime], str]:
    return lambda at: case(names[3 * number(at) : 3 * number(at) + 3])


_NUMBERS: dict[str, Callable[[datetime], str]] = {
    "YYYY": lambda at: f"{at.year:04}",
    "YY": lambda at: f"{at.year % 100:02}",
    "IYYY": lambda at: f"{at.isocalendar().year:04}",
    "Q": lambda at: str((at.month + 2) // 3),
    "MM": lambda at: f"{at.month:02}",
    "WW": lambda at: f"{(at.timetuple().tm_yday + 6) // 7:02}",
    "IW": lambda at: f"{at.isocalendar().week:02}",
    "DDD": lambda at: f"{at.timetuple().tm_yday:03}",
    "DD": lambda at: f"{at.day:02}",
    "D": lambda at: str(at.isoweekday() % 7 + 1),
    "ID": lambda at: str(at.isoweekday()),
    "HH24": lambda at: f"{at.hour:02}",
    "HH12": _hour12,
    "HH": _hour12,
    "MI": lambda at: f"{at.minute:02}",
    "SS": lambda at: f"{at.second:02}",
    "MS": lambda at: f"{at.microsecond // 1000:03}",
    "US": lambda at: f"{at.microsecond:06}",
}
PATTERNS: dict[str, Callable[[datetime], str]] = {
    **_NUMBERS,
    **{pattern.lower(): how for pattern, how in _NUMBERS.items()},
    **dict.fromkeys(("AM", "PM"), lambda at: "AM" if at.hour < 12 else "PM"),
    **dict.fromkeys(("am", "pm"), lambda at: "am" if at.hour < 12 else "pm"),
    "Mon": _named(_MONTHS, lambda at: at.month - 1, str),
    "MON": _named(_MONTHS, lambda at: at.month - 1, str.upper),
    "mon": _named(_MONTHS, lambda at: at.month - 1, str.lower),
    "Dy": _named(_DAYS, date.weekday, str),
    "DY": _named(_DAYS, date.weekday, str.upper),
    "dy": _named(_DAYS, date.weekday, str.lower),
}
"""The patterns of ``to_char`` that mean the same in every PostgreSQL, whatever its settings."""

_POSTGRES = (
    "A.D. A.M. AD AM B.C. BC CC DAY DDD DD DY D FF1 FF2 FF3 FF4 FF5 FF6 FM FX HH24 HH12 HH IDDD ID IW IYYY IYY IY I J "
    "MI MM MONTH MON MS OF P.M. PM Q RM SP SSSSS SSSS SS TH TM TZH TZM TZ US WW W YYYY YYY YY Y"
)
_KNOWN = sorted(_POSTGRES.split(), key=len, reverse=True)


def format_parts(form: str) -> list[str | Callable[[datetime], str]]:
    """A format of ``to_char`` as texts and patterns; raises ValueError with what in it is not known here."""
    parts: list[str | Callable[[datetime], str]] = []
    at = 0
    for match in _WORD.finditer(form):
        if match.start() != at:
            break
        at = match.end()
        quoted, word, other = match.groups()
        parts += _patterns(word) if word else [quoted if quoted is not None else other]
    if at != len(form):
        raise ValueError(form[at : at + 1])
    return parts


def _patterns(word: str) -> list[str | Callable[[datetime], str]]:
    """The patterns that a run of letters and digits consists of, each the longest that PostgreSQL knows."""
    found: list[str | Callable[[datetime], str]] = []
    while word:
        known = next((pattern for pattern in _KNOWN if word.upper().startswith(pattern)), None)
        written = word[: len(known)] if known else word
        if word.startswith("."):
            found.append(".")
            written = "."
        elif written not in PATTERNS:
            raise ValueError(written)
        else:
            found.append(PATTERNS[written])
        word = word[len(written) :]
    return found


def to_char(at: datetime, form: str) -> str | None:
    """``to_char(at, form)``; the format is one that ``format_parts`` takes. An empty one gives NULL."""
    instant = at.astimezone(UTC)
    if not form:
        return None
    return "".join(part if isinstance(part, str) else part(instant) for part in format_parts(form))
