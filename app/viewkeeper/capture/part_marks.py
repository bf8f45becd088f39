"""How a program says inside a SQLite database that its transaction is a part of one over several sources, as SQL.

    BEGIN IMMEDIATE;
    INSERT INTO _viewkeeper_global_txn (id, sources) VALUES ('g7', 'shop,crm');
    …

What it inserts into is a view, whose trigger appends a *part* row to the change log; nothing else is kept. The view
shows the parts that the log still holds. The trigger refuses nonsense at once, and an id that the log still holds: an
id names one transaction, and a second mark of it would begin a second one.

SQLite shows a trigger no transaction, neither its begin nor its end, so a mark that is not the first statement of its
transaction cannot be told from one that is. ``BEGIN`` can: inside a transaction SQLite refuses it. Hence the rule, the
mark comes directly after BEGIN; what is told of a mark that breaks it is in ``update_pieces``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from viewkeeper.managers.sources.sqlite_log import GLOBAL_TXN, LOG

LONGEST_ID = 200

_TRIGGER = f"{GLOBAL_TXN}_insert"
_INDEX = f"{LOG}_part"
OBJECTS = {_TRIGGER: "TRIGGER", GLOBAL_TXN: "VIEW", _INDEX: "INDEX"}
"""What there may be in the database, in the order in which it can be dropped."""


def part_marks(source: str, spans: Iterable[Collection[str]]) -> dict[str, str]:
    """The statements by the name of what they create, in order; none if no transaction spans the source.

    ``spans`` are the sets of sources that transactions may span, as the configuration declares them.
    """
    mine = sorted({tuple(sorted(set(spanned))) for spanned in spans if source in spanned})
    if not mine:
        return {}
    steps = "".join(f"  {step};\n" for step in _steps(source, mine))
    return {
        _INDEX: f"CREATE INDEX {_INDEX} ON {LOG} (b0) WHERE op = 'part'",
        GLOBAL_TXN: f"CREATE VIEW {GLOBAL_TXN} (id, sources) AS SELECT b0, a0 FROM {LOG} WHERE op = 'part'",
        _TRIGGER: f"CREATE TRIGGER {_TRIGGER} INSTEAD OF INSERT ON {GLOBAL_TXN} BEGIN\n{steps}END",
    }


def _steps(source: str, spans: Collection[tuple[str, ...]]) -> list[str]:
    declared = " or of ".join(", ".join(spanned) for spanned in spans)
    return [
        _refuse(f"an id is 1 to {LONGEST_ID} printable ASCII characters", _is_no_id()),
        _refuse(f"sources must be {source} and at least one other of {declared}", _are_no_sources(source, spans)),
        _refuse("this id was used before", f"EXISTS (SELECT 1 FROM {LOG} WHERE op = 'part' AND b0 = NEW.id)"),
        f"INSERT INTO {LOG} (op, b0, a0) VALUES ('part', NEW.id, replace(NEW.sources, ' ', ''))",
    ]


def _refuse(what: str, condition: str) -> str:
    return f"SELECT RAISE(ABORT, 'viewkeeper: {what}') WHERE {condition}"


def _is_no_id() -> str:
    """Only ASCII, because SQLite also takes text that is no text, and an id must mean the same at every source.

    What lies behind a NUL is seen only in the bytes, of which a character has two where the database is in UTF-16.
    """
    wrong = f"NEW.id GLOB '*[^ -~]*' OR length(NEW.id) NOT BETWEEN 1 AND {LONGEST_ID}"
    bytes = "length(CAST(NEW.id AS BLOB)) <> length(NEW.id) * length(CAST('a' AS BLOB))"
    return f"typeof(NEW.id) <> 'text' OR {wrong} OR {bytes}"


def _are_no_sources(source: str, spans: Collection[tuple[str, ...]]) -> str:
    """Names are written ``,a,b,``: if a comma is left when those of a set are taken out, there were no others."""
    named = "',' || replace(NEW.sources, ' ', '') || ','"
    within = []
    for spanned in spans:
        left = named
        for name in spanned:
            left = f"replace({left}, ',{name},', ',')"
        within.append(f"{left} = ','")
    others = f"instr({named}, ',{source},') > 0 AND {named} <> ',{source},'"
    return f"typeof(NEW.sources) <> 'text' OR NOT ({others} AND ({' OR '.join(within)}))"
