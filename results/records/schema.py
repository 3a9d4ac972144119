"""The columns of the four record tables, named once. The shape of ``summary.json`` is in ``summary.py``.

Every time is in run-clock seconds of the real cluster, every byte count is real unless its name says ``emulated``.
Column names carry their unit. Strings are never missing (an empty string means "none"); numbers and booleans are
missing where nothing happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from inputs.csv_file import CsvFile
from inputs.errors import InputError, printable, shown

WARMUP_PREFIX = "warmup-"
STATUSES = ("completed", "failed", "unfinished")
TTFT_PARTS = ("queue_s", "prefill_s", "circuit_wait_s", "transfer_exposed_s", "control_s", "return_s")
EXPOSED_PARTS = ("circuit_wait_s", "transfer_exposed_s")

STRING, INTEGER, REAL, BOOLEAN = "string", "Int64", "float64", "boolean"
_NUMBERS = (INTEGER, REAL)
#: Above every count and time; sums of such numbers stay finite and whole numbers of 64 bits.
MOST = 1e17


@dataclass(frozen=True, slots=True)
class Table:
    """One CSV file: its name without the ending, and the pandas dtype of each column, in order."""

    name: str
    dtypes: Mapping[str, str]

    @property
    def columns(self) -> list[str]:
        return list(self.dtypes)

    def frame(self, rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
        """A data frame of exactly these columns and dtypes; what a row lacks is missing.

        Raises ValueError for a key that is no column, or for a value that its dtype cannot hold.
        """
        listed = [dict(row) for row in rows]
        if unknown := sorted({key for row in listed for key in row} - set(self.dtypes)):
            raise ValueError(
                f"{self.name}: no such column: {', '.join(unknown)}; the columns are {', '.join(self.dtypes)}"
            )
        return self.conform(pd.DataFrame(listed, columns=self.columns, dtype=object))

    def conform(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The same data with this table's columns in order and its dtypes. ValueError names what does not fit."""
        if missing := [name for name in self.dtypes if name not in frame.columns]:
            raise ValueError(
                f"{self.name}: missing column {', '.join(missing)}; was the file written by another version?"
            )
        out = frame[self.columns].copy()
        for name, dtype in self.dtypes.items():
            try:
                column = out[name]
                if dtype == STRING:
                    column = column.fillna("")
                out[name] = column.astype(dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{self.name}.csv, column {name}: {printable(str(error))}") from error
        return out

    def read(self, path: Path) -> pd.DataFrame:
        """Read one CSV file of this table. ValueError names the file and the column that does not fit."""
        # A tenant may be called "NA" or "null": only the empty field is missing.
        try:
            # as text first: pandas would read a column of ids such as "007" as numbers
            file = CsvFile(path, spaces=True)
            frame = pd.DataFrame([cells for _, cells in file], columns=file.names, dtype=object)
            frame = frame.mask(frame == "")
            for name in (name for name, dtype in self.dtypes.items() if dtype == BOOLEAN and name in frame.columns):
                if strange := sorted(set(frame[name].dropna()) - {"True", "False"}):
                    raise ValueError(f"{self.name}.csv, column {name}: {strange[0]!r}, expected True, False or nothing")
                frame[name] = frame[name].map({"True": True, "False": False}, na_action="ignore")
            for name in (name for name, dtype in self.dtypes.items() if dtype in _NUMBERS and name in frame.columns):
                found = _numbers(frame[name], self.name)
                if self.dtypes[name] == INTEGER:  # `conform` reads the others, to their last digit
                    frame[name] = found
            return self.conform(frame)
        except InputError:
            raise
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _numbers(column: pd.Series, table: str) -> pd.Series:
    """Cells as finite numbers. Raises ValueError with the first one that is none."""
    found = pd.to_numeric(column, errors="coerce")
    size = found.astype("float64").abs()
    broken = column[column.notna() & ~(size < MOST)]
    if len(broken):
        raise ValueError(f"{table}.csv, column {column.name}: {shown(broken.iloc[0])} is no number")
    return found


REQUESTS = Table(
    "requests",
    {
        "id": STRING,
        "tenant": STRING,
        "session": STRING,
        "arrival_s": REAL,
        "new_tokens": INTEGER,
        "cached_tokens": INTEGER,
        "status": STRING,
        "reason": STRING,
        "prefill": STRING,
        "decode": STRING,
        "migrated": BOOLEAN,
        "sent_s": REAL,
        "received_s": REAL,
        "prefill_start_s": REAL,
        "prefill_end_s": REAL,
        "last_byte_s": REAL,
        "first_token_s": REAL,
        "ttft_s": REAL,
        "queue_s": REAL,
        "prefill_s": REAL,
        "circuit_wait_s": REAL,
        "transfer_exposed_s": REAL,
        "control_s": REAL,
        "return_s": REAL,
    },
)
TRANSFERS = Table(
    "transfers",
    {
        "request": STRING,
        "rank": INTEGER,
        "prefill": STRING,
        "decode": STRING,
        "bytes": INTEGER,
        "emulated_bytes": INTEGER,
        "first_byte_s": REAL,
        "last_byte_s": REAL,
        "source_port": INTEGER,
        "uplink": INTEGER,
        "retransmits": INTEGER,
        "rtos": INTEGER,
        "shared_s": REAL,
        "sharers": INTEGER,
    },
)
SWITCH_STEPS = ("remove", "barrier", "purge", "dark_wait", "install", "barrier2", "purge2")
CIRCUITS = Table(
    "circuits",
    {
        "window": INTEGER,
        "request": STRING,
        "part": STRING,
        "migrated": BOOLEAN,
        "bytes": INTEGER,
        "prefill": STRING,
        "decode": STRING,
        "state": STRING,
        "start_s": REAL,
        "live_s": REAL,
        "end_s": REAL,
        "dark_at_s": REAL,
        "live_at_s": REAL,
        "released_at_s": REAL,
        "needs_switch": BOOLEAN,
        **{f"{step}_s": REAL for step in SWITCH_STEPS},
        "reason": STRING,
    },
)
LINKS = Table(
    "links",
    {
        "node": STRING,
        "interface": STRING,
        "peer": STRING,
        "role": STRING,
        "goodput_bps": REAL,
        "wire_bps": REAL,
        "tx_bytes": INTEGER,
        "tx_packets": INTEGER,
        "drops": INTEGER,
        "overlimits": INTEGER,
        "device_tx_packets": INTEGER,
        "rx_bytes": INTEGER,
        "rx_packets": INTEGER,
        "largest_backlog_bytes": INTEGER,
    },
)
TABLES = {table.name: table for table in (REQUESTS, TRANSFERS, CIRCUITS, LINKS)}


def is_warmup(ids: pd.Series) -> pd.Series:
    """Which ids belong to the warm-up: it has ids of its own, beginning with ``warmup-``."""
    return ids.astype("string").str.startswith(WARMUP_PREFIX).astype(bool)
