"""The writer: threads that change the demo's databases at once, as programs do that know nothing of each other."""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from viewkeeper.local.demo.transactions import BODIES
from viewkeeper.local.demo.world import Session, World

PAUSE = {"shop": 0.05, "crm": 0.12, "stock": 0.12}
"""Mean seconds between two transactions of one thread."""

THREADS = ("shop", "shop", "crm", "stock")
ROLLED_BACK = 0.04
STOP_SECONDS = 10.0
REMEMBERED = 8


@dataclass(frozen=True)
class Written:
    """One committed transaction: what it did, where its source's history stood after it, and when that was."""

    source: str
    words: str
    position: int
    at: float


class Writer:
    """Writes until it is stopped. Its numbers are exact for whoever asks after ``stop``, and nearly so before."""

    def __init__(self, world: World, seed: int = 7):
        self.world = world
        self.transactions: Counter[str] = Counter()
        self.rolled_back = 0
        self._recent: deque[Written] = deque(maxlen=REMEMBERED)
        self.failure: Exception | None = None
        self._unseen: list[Written] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._seed = seed
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts the threads; the databases must be captured by now, or changes would be missed."""
        for number, source in enumerate(THREADS):
            chance = random.Random(self._seed + number)
            thread = threading.Thread(target=self._run, args=(source, chance), name=f"writer-{source}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Ends after the transactions in hand."""
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_SECONDS)

    def write_one(self, source: str) -> Written:
        """Commits one transaction, in this thread."""
        with self.world.session(source) as db:
            chance = random.Random(self._seed)
            while (written := self._transaction(db, source, chance)) is None:
                pass
        return written

    def latest(self) -> list[Written]:
        """The last few transactions, oldest first."""
        with self._lock:
            return list(self._recent)

    def take_seen(self, positions: Mapping[str, int]) -> list[Written]:
        """The transactions up to these positions of their sources; each is handed out once."""
        with self._lock:
            seen = [w for w in self._unseen if w.position <= positions.get(w.source, 0)]
            self._unseen = [w for w in self._unseen if w.position > positions.get(w.source, 0)]
        return seen

    def _run(self, source: str, chance: random.Random) -> None:
        try:
            with self.world.session(source) as db:
                while not self._stop.wait(chance.expovariate(1 / PAUSE[source])):
                    self._transaction(db, source, chance)
        except Exception as error:  # for the main thread, which asks for it
            self.failure = error

    def _transaction(self, db: Session, source: str, chance: random.Random) -> Written | None:
        """One transaction; now and then one that changes its mind and must leave no trace."""
        bodies = BODIES[source]
        (body,) = chance.choices([b for b, _ in bodies], [weight for _, weight in bodies])
        try:
            db.begin()
            words = body(db, chance)
            if words is None or chance.random() < ROLLED_BACK:
                with self._lock:
                    self.rolled_back += words is not None
                return None
            committed = db.commit()
            if committed is None:
                return None
        except Exception as error:
            if not db.gives_way(error):
                raise
            return None
        finally:
            db.rollback()
        written = Written(source, words, committed.position, committed.at)
        with self._lock:
            self.transactions[source] += 1
            self._recent.append(written)
            self._unseen.append(written)
        return written
