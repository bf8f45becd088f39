"""The triggers that fill a table's change log, as SQL.

Inserts, updates and deletes are logged by AFTER triggers. The difficulty is REPLACE (``INSERT OR REPLACE``, ``UPDATE OR
REPLACE``, ``ON CONFLICT REPLACE``): unless ``recursive_triggers`` is on, it deletes the rows that stand in the way
without firing a delete trigger. So a BEFORE trigger *notes* every row that conflicts with NEW, as candidates. Law of
the notes: a note is equal to the row of the same identity in the table, or that row was silently deleted by a
statement whose AFTER trigger is still to come. It holds because every AFTER trigger brings the notes of its row up
to date. So when the AFTER trigger of NEW fires, the notes that conflict with NEW and whose row is gone are exactly
the rows that NEW silently replaced. A note that never counts (OR IGNORE, upserts) stays true, and harmless, until
VACUUM numbers the rows anew: so notes go before the next statement begins, or where that cannot be told, after VACUUM.

Other programs may run between BEFORE and AFTER: the user's own triggers, and foreign keys' actions. A table that has
such company is *guarded*: NEW is registered as *pending*, so that a row which begins to conflict with it meanwhile
is noted as well; and where foreign keys refer to the table, an action may meet NEW under a replaced row's identity
before NEW's own AFTER trigger, so notes of a performed update are settled by whichever trigger comes first.

One case stays open: an OR FAIL inside a user's trigger that a foreign key's action fires in the middle of a REPLACE.
It ends the statement, keeps what REPLACE deleted, and no trigger fires after it.

An identity is the rowid, or the primary key of a WITHOUT ROWID table; the log has it with every row, after the columns
where no column is the rowid. Nothing here may conflict itself: a statement's OR clause also governs the statements of
the triggers it fires.

The triggers name only the columns that somebody needs and those that can make two rows conflict (``Table.narrowed``),
because SQLite lets nobody drop a column that a trigger names.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from viewkeeper.managers.sources.sqlite_log import LOG, notes_table, order_table, pending_table
from viewkeeper.managers.sources.sqlite_schema import OWN, Table, UniqueKey, quoted

_LITERAL = re.compile(r"\(*\s*(?:[+-]?\s*[\d.]+(?:e[+-]?\d+)?|x?'(?:[^']|'')*'|true|false)\s*\)*", re.IGNORECASE)
_ROW = "_row"  # the captured table inside a trigger's SELECT


class TriggerWriter:
    """Writes the scratch tables and triggers of one captured table."""

    def __init__(self, table: Table, number: int):
        self.table = table
        self.number = number
        self.notes = notes_table(number)
        self.pending = pending_table(number)
        self.order = order_table(number)
        self.guarded = bool(table.user_triggers) or table.referenced
        self.positions = range(len(table.columns))
        self.logs_rowid = table.rowid_name is not None and table.rowid_column is None
        self.places = range(len(table.columns) + self.logs_rowid)  # of the log
        self.is_renumbered = self.guarded and self.logs_rowid  # by VACUUM, in the midst of what was noted
        self.keys = self._keys()
        self.identity = self.keys[0]

    def _keys(self) -> tuple[UniqueKey, ...]:
        """The identity first; the rowid is written as a key without columns."""
        if not self.table.without_rowid:
            return (UniqueKey((), ()), *self.table.unique_keys)
        primary = self.table.primary_key
        own = next(key for key in self.table.unique_keys if set(key.positions) == set(primary) and not key.where)
        return (own, *(key for key in self.table.unique_keys if key != own))

    # ---- what is created

    def statements(self) -> list[str]:
        """Everything to execute, in order; AFTER triggers last, because SQLite fires the newest first."""
        return [*self._scratch(), *self._triggers()]

    def _scratch(self) -> list[str]:
        columns = ", ".join(["rid", *(f"c{i}" for i in self.positions)])
        old = ", ".join(["orid", *(f"o{i}" for i in self.identity.positions)])
        image = ", ".join(["altered", *(f"i{i}" for i in self.positions)])
        tables = [
            f"CREATE TABLE {self.notes} ({columns})",
            f"CREATE TABLE {self.pending} (id INTEGER PRIMARY KEY, done, {columns}, {old}, {image})",
        ]
        for name in (self.notes, self.pending):
            tables += [f"CREATE INDEX {name}_{i} ON {name} ({self._indexed(key)})" for i, key in enumerate(self.keys)]
        if self.is_renumbered:
            tables += [f"CREATE TABLE {self.order} (x)", f"INSERT INTO {self.order} (rowid) VALUES (2)"]
        return tables

    def _indexed(self, key: UniqueKey) -> str:
        parts = zip(key.positions, key.collations, strict=True)
        return ", ".join(f"c{i} COLLATE {quoted(collation)}" for i, collation in parts) or "rid"

    def _triggers(self) -> list[str]:
        moved = "" if self.guarded else self._key_moved()
        return [
            self._trigger("BEFORE", "INSERT", self._before("INSERT")),
            self._trigger("BEFORE", "UPDATE", self._before("UPDATE"), moved),
            self._trigger("BEFORE", "DELETE", self._before_delete()),
            self._trigger("AFTER", "DELETE", self._after_delete()),
            self._trigger("AFTER", "INSERT", self._after("INSERT")),
            self._trigger("AFTER", "UPDATE", self._after("UPDATE")),
            # It never fires. One of the others that is dropped and made anew comes behind it.
            f"CREATE TRIGGER {OWN}{self.number}_seal BEFORE UPDATE OF id ON {self.pending} BEGIN SELECT 1; END",
        ]

    def _trigger(self, when: str, event: str, body: list[str], condition: str = "") -> str:
        name = f"{OWN}{self.number}_{when}_{event}".lower()
        steps = "".join(f"  {step};\n" for step in body)
        head = f"CREATE TRIGGER {name} {when} {event} ON {quoted(self.table.name)}"
        return f"{head}{f' WHEN {condition}' if condition else ''} BEGIN\n{steps}END"

    # ---- the triggers' steps

    def _before(self, event: str) -> list[str]:
        steps = [*self._forget_renumbered(), *self._settle_performed()]
        if self.guarded:
            steps.append(self._register(event))
        else:
            # No other statement on the table is under way, so there is no note that can still count. (Without WHERE,
            # SQLite would write even to an empty table.)
            steps.append(f"DELETE FROM {self.notes} WHERE 1")
        return steps + [self._note_candidates(key, event) for key in self.keys]

    def _after(self, event: str) -> list[str]:
        steps = self._settle_replaced(event)
        if self.guarded and event == "UPDATE":
            steps += self._correct_old()
        if self.guarded:
            steps.append(self._unregister())
        if event == "UPDATE":
            left = f"({self._same('OLD', 'NEW')} OR NOT {self._exists('OLD')})"
            steps.append(f"DELETE FROM {self.notes} WHERE {self._same(self.notes, 'OLD')} AND {left}")
        if self.guarded and event == "UPDATE":
            steps += self._settle_abandoned(f"AND NOT ({self._same('OLD', 'NEW')})")
        if self.guarded:
            steps.append(self._note_if_pending())
        if self.guarded and event == "UPDATE":
            steps += [self._mark_performed(), self._remember_image()]
        return [*steps, self._log_insert() if event == "INSERT" else self._log_update()]

    def _before_delete(self) -> list[str]:
        """A row that is deleted aloud is no candidate any more; AFTER DELETE would come too late to say so.

        Foreign keys act, and fire triggers, between the row's end and its AFTER DELETE trigger.
        """
        steps = [
            *self._forget_renumbered(),
            *self._settle_performed(),
            f"DELETE FROM {self.notes} WHERE {self._same(self.notes, 'OLD')}",
        ]
        if self.guarded:
            steps.append(f"UPDATE {self.pending} SET done = 1 WHERE {self._same_old('OLD')}")
        return steps

    def _after_delete(self) -> list[str]:
        steps = self._settle_abandoned()
        values = ", ".join(self._logged("OLD"))
        return [
            *steps,
            f"INSERT INTO {LOG} (relation, op, {self._side('b')}) VALUES ({self._name}, 'delete', {values})",
        ]

    def _forget_renumbered(self) -> list[str]:
        """After VACUUM a rowid may be another row's; it renumbers a row that was put in the second place, too."""
        if not self.is_renumbered:
            return []
        renumbered = f"NOT EXISTS (SELECT 1 FROM {self.order} WHERE rowid = 2)"
        return [
            f"DELETE FROM {self.notes} WHERE {renumbered}",
            f"DELETE FROM {self.pending} WHERE {renumbered}",
            f"UPDATE {self.order} SET rowid = 2 WHERE rowid <> 2",
        ]

    def _note_candidates(self, key: UniqueKey, event: str) -> str:
        """Notes the rows that NEW conflicts with by ``key`` and that have no note yet."""
        conditions = [self._match(key, _ROW, self._coming)]
        if key.where:
            conditions.append(f"({key.where})")
        if event == "UPDATE":
            conditions.append(f"NOT ({self._same(_ROW, 'OLD')})")
        conditions.append(f"NOT EXISTS (SELECT 1 FROM {self.notes} WHERE {self._same(self.notes, _ROW)})")
        values = ", ".join([self._rid(_ROW), *(self._column(_ROW, i) for i in self.positions)])
        return (
            f"INSERT INTO {self.notes} SELECT {values} FROM {quoted(self.table.name)} AS {_ROW} "
            f"WHERE {' AND '.join(conditions)}"
        )

    def _note_if_pending(self) -> str:
        """Notes the row just written if a statement that is still under way conflicts with it.

        The row is taken from the table: a foreign key's action may have altered or deleted it since NEW was made.
        """
        values = ", ".join([self._rid(_ROW), *(self._column(_ROW, i) for i in self.positions)])
        return (
            f"INSERT INTO {self.notes} SELECT {values} FROM {quoted(self.table.name)} AS {_ROW} "
            f"WHERE {self._same(_ROW, 'NEW')} "
            f"AND EXISTS (SELECT 1 FROM {self.pending} WHERE done IS NULL AND ({self._conflict(self.pending)})) "
            f"AND NOT EXISTS (SELECT 1 FROM {self.notes} WHERE {self._same(self.notes, 'NEW')})"
        )

    def _register(self, event: str) -> str:
        names = ["rid", *(f"c{i}" for i in self.positions)]
        values = [self._rid("NEW"), *(self._coming(i) for i in self.positions)]
        if event == "UPDATE":
            names += ["orid", *(f"o{i}" for i in self.identity.positions)]
            values += [self._rid("OLD"), *(self._column("OLD", i) for i in self.identity.positions)]
        return f"INSERT INTO {self.pending} ({', '.join(names)}) VALUES ({', '.join(values)})"

    def _unregister(self) -> str:
        """Removes what NEW registered, and all that was registered inside it: none of that is under way any more."""
        unique = sorted({i for key in self.keys for i in key.positions})
        same = [f"(c{i} IS {self._column('NEW', i)} COLLATE BINARY OR c{i} IS NULL)" for i in unique]
        if not self.table.without_rowid:
            same.append(f"rid IN ({self._rid('NEW')}, -1)")
        newest = f"SELECT max(id) FROM {self.pending} WHERE {' AND '.join(same)}"
        return f"DELETE FROM {self.pending} WHERE id >= ({newest})"

    def _mark_performed(self) -> str:
        """OLD is what a statement under way made of the row: that one is performed, only its AFTER trigger waits."""
        made = " AND ".join(f"c{i} IS {self._column('OLD', i)} COLLATE BINARY" for i in self.positions)
        return f"UPDATE {self.pending} SET done = 1 WHERE done IS NULL AND {self._same_old('OLD')} AND {made}"

    def _remember_image(self) -> str:
        """The row just written is about to be updated by a statement under way: that one's OLD is out of date."""
        names = ", ".join(["altered", *(f"i{i}" for i in self.positions)])
        values = ", ".join(["1", *(self._column(_ROW, i) for i in self.positions)])
        row = f"SELECT {values} FROM {quoted(self.table.name)} AS {_ROW} WHERE {self._same(_ROW, 'NEW')}"
        return f"UPDATE {self.pending} SET ({names}) = ({row}) WHERE done IS NULL AND {self._same_old('NEW')}"

    def _correct_old(self) -> list[str]:
        """Logs what OLD should have been: SQLite read it before other programs altered the row."""
        own = f"SELECT max(id) FROM {self.pending} WHERE {self._same_old('OLD')}"
        altered = f"FROM {self.pending} WHERE id = ({own}) AND altered = 1"
        image = ", ".join([*(f"i{i}" for i in self.positions), *([self._rid("OLD")] if self.logs_rowid else [])])
        old = ", ".join(self._logged("OLD"))
        return [
            f"INSERT INTO {LOG} (relation, op, {self._side('b')}) SELECT {self._name}, 'delete', {image} {altered}",
            f"INSERT INTO {LOG} (relation, op, {self._side('a')}) SELECT {self._name}, 'insert', {old} {altered}",
        ]

    def _settle_replaced(self, event: str) -> list[str]:
        """Logs, as deleted, the noted rows that NEW silently replaced."""
        taken = self._same(self.notes, "NEW")
        if self.table.referenced:
            # Once it is settled, a note under NEW's identity is NEW itself, as a foreign key's action left it.
            done = f"SELECT 1 FROM {self.pending} WHERE done = 1 AND {self._same(self.pending, 'NEW')}"
            taken = f"({taken} AND NOT EXISTS ({done}))"
        gone = f"({taken} OR NOT {self._exists(self.notes)})"
        condition = f"({self._conflict(self.notes)}) AND {gone}"
        if event == "UPDATE":
            condition += f" AND NOT ({self._same(self.notes, 'OLD')})"
        if event == "UPDATE" and not self.guarded and (moved := self._key_moved()):
            condition += f" AND ({moved})"  # else nothing was noted for it
        steps = [self._log_notes(condition), f"DELETE FROM {self.notes} WHERE {condition}"]
        if self.table.referenced:
            # An update whose own row was replaced is never performed; it must not look as if it had been.
            lost = f"EXISTS (SELECT 1 FROM {self.notes} WHERE {self._same_old(self.notes)} AND {condition})"
            steps.insert(0, f"DELETE FROM {self.pending} WHERE {lost}")
        return steps

    def _settle_performed(self) -> list[str]:
        """Settles the note under the identity that a performed update took over, before anyone mistakes NEW for it."""
        if not self.table.referenced:
            return []
        old_row = " AND ".join(
            f"{self._column(_ROW, i)} = {self.pending}.o{i} COLLATE {quoted(c)}"
            for i, c in zip(self.identity.positions, self.identity.collations, strict=True)
        )
        old_row = old_row or f"{self._rid(_ROW)} = {self.pending}.orid"
        performed = (
            f"{self.pending}.done IS NULL AND {self._old_known()} AND NOT ({self._same_old(self.pending)}) "
            f"AND NOT EXISTS (SELECT 1 FROM {quoted(self.table.name)} AS {_ROW} WHERE {old_row}) "
            # An older one that looks performed was ignored, and its row went another way.
            f"AND id = (SELECT max(id) FROM {self.pending})"
        )
        taken, moved = (
            f"EXISTS (SELECT 1 FROM {self.pending} WHERE {performed} AND {same})"
            for same in (self._same(self.notes, self.pending), self._same_old(self.notes))
        )
        return [
            self._log_notes(taken),
            f"DELETE FROM {self.notes} WHERE {taken}",
            f"DELETE FROM {self.notes} WHERE {moved}",
            f"UPDATE {self.pending} SET done = 1 WHERE {performed}",
        ]

    def _settle_abandoned(self, condition: str = "") -> list[str]:
        """OLD, about to be updated, was deleted or moved by what that update replaced: it will never be performed."""
        if not self.guarded:
            return []
        abandoned = (
            f"EXISTS (SELECT 1 FROM {self.pending} WHERE {self._same_old('OLD')} {condition}) "
            f"AND NOT ({self._same(self.notes, 'OLD')}) AND NOT {self._exists(self.notes)}"
        )
        return [
            self._log_notes(abandoned),
            f"DELETE FROM {self.notes} WHERE {abandoned}",
            f"DELETE FROM {self.pending} WHERE {self._same_old('OLD')} {condition}",
        ]

    # ---- writing the log

    @property
    def _name(self) -> str:
        return "'" + self.table.name.replace("'", "''") + "'"

    def _side(self, side: str) -> str:
        return ", ".join(f"{side}{i}" for i in self.places)

    def _logged(self, row: str) -> list[str]:
        """The values of a row that the log has, in the order of its places."""
        return [*(self._column(row, i) for i in self.positions), *([self._rid(row)] if self.logs_rowid else [])]

    def _log_insert(self) -> str:
        values = ", ".join(self._logged("NEW"))
        return f"INSERT INTO {LOG} (relation, op, {self._side('a')}) VALUES ({self._name}, 'insert', {values})"

    def _log_update(self) -> str:
        names, values = f"{self._side('b')}, {self._side('a')}", ", ".join([*self._logged("OLD"), *self._logged("NEW")])
        return f"INSERT INTO {LOG} (relation, op, {names}) VALUES ({self._name}, 'update', {values})"

    def _log_notes(self, condition: str) -> str:
        values = ", ".join(self._logged(self.notes))
        return (
            f"INSERT INTO {LOG} (relation, op, {self._side('b')}) "
            f"SELECT {self._name}, 'delete', {values} FROM {self.notes} WHERE {condition}"
        )

    # ---- conditions

    def _column(self, row: str, position: int) -> str:
        if row in (self.notes, self.pending):
            return f"{row}.c{position}"
        return f"{row}.{quoted(self.table.columns[position].name)}"

    def _rid(self, row: str) -> str:
        if self.table.rowid_name is None:
            return "NULL"
        return f"{row}.rid" if row in (self.notes, self.pending) else f"{row}.{quoted(self.table.rowid_name)}"

    def _coming(self, position: int) -> str:
        """NEW's value as REPLACE may change it: NULL in a NOT NULL column becomes the default."""
        column = self.table.columns[position]
        value = self._column("NEW", position)
        if column.not_null and column.default and _LITERAL.fullmatch(column.default):
            return f"coalesce({value}, {column.default})"
        return value

    def _match(self, key: UniqueKey, row: str, new: Callable[[int], str]) -> str:
        """Does ``row`` conflict with NEW by ``key``? (A partial key's condition is the caller's.)"""
        if not key.positions:
            return f"{self._rid(row)} = {self._rid('NEW')}"
        parts = []
        for i, collation in zip(key.positions, key.collations, strict=True):
            equal = f"{self._column(row, i)} = {new(i)} COLLATE {quoted(collation)}"
            column = self.table.columns[i]
            computed = column.not_null and column.default and not _LITERAL.fullmatch(column.default)
            open_value = self._column(self.pending if row == self.pending else "NEW", i)
            parts.append(f"({equal} OR {open_value} IS NULL)" if computed else equal)
        return " AND ".join(parts)

    def _conflict(self, row: str) -> str:
        """Does ``row`` (a note, or something pending) conflict with NEW as it was written, by any key?"""
        return " OR ".join(f"({self._match(k, row, lambda i: self._column('NEW', i))})" for k in self.keys)

    def _same(self, left: str, right: str) -> str:
        """Have two rows the same identity?"""
        pairs = zip(self.identity.positions, self.identity.collations, strict=True)
        parts = [f"{self._column(left, i)} = {self._column(right, i)} COLLATE {quoted(c)}" for i, c in pairs]
        return " AND ".join(parts) or f"{self._rid(left)} = {self._rid(right)}"

    def _same_old(self, row: str) -> str:
        """Is ``row`` the one that a pending update is about to change?"""
        pairs = zip(self.identity.positions, self.identity.collations, strict=True)
        parts = [f"{self.pending}.o{i} = {self._column(row, i)} COLLATE {quoted(c)}" for i, c in pairs]
        return " AND ".join(parts) or f"{self.pending}.orid = {self._rid(row)}"

    def _old_known(self) -> str:
        names = [f"o{i}" for i in self.identity.positions] or ["orid"]
        return " AND ".join(f"{self.pending}.{name} IS NOT NULL" for name in names)

    def _exists(self, row: str) -> str:
        return f"EXISTS (SELECT 1 FROM {quoted(self.table.name)} AS {_ROW} WHERE {self._same(_ROW, row)})"

    def _key_moved(self) -> str:
        """Did an update change anything that can conflict? If not, there is nothing to note."""
        if any(key.where for key in self.keys):
            return ""  # a row also begins to conflict by entering a partial index
        unique = sorted({i for key in self.keys for i in key.positions})
        parts = [f"OLD.{q} IS NOT NEW.{q} COLLATE BINARY" for q in (quoted(self.table.columns[i].name) for i in unique)]
        if not self.table.without_rowid:
            parts.append(f"{self._rid('OLD')} <> {self._rid('NEW')}")
        return " OR ".join(parts)
