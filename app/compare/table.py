"""Table or files as one side of a comparison, read in one snapshot."""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

from kafka_ratchet.app.compare import parquet_files
from kafka_ratchet.app.compare.address import Address, table_names
from kafka_ratchet.app.compare.columns import ValueLocation
from kafka_ratchet.app.compare.side import UNKNOWN_MS, RequestedValues, Rows
from kafka_ratchet.app.compare.values import Kind
from kafka_ratchet.errors import SettingsError, SourceError

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_ratchet.app.compare.column_texts import Column

ROWS: Final = 50_000
"""Number of rows read at a time."""

Read = tuple[int, int, "Sequence[Column]"]
"""Rows read at a time: number of their part, number of the first row, and values by column."""

TIME_MOST_MS: Final = 2**62
"""Time later than any clock's, in milliseconds since 1970."""

TIME_COLUMN: Final = "_kafka_timestamp"
"""Column of the record's timestamp in result tables of Ratchet."""


class TableSide:
    """Table, file or folder as one side of a comparison.

    Args:
        address: address of the table.
        options: options of the catalog or storage, by their names in its library.
        timestamp: column with the time of each row; None: `_kafka_timestamp`, if the table has it.

    Raises:
        SourceError: the table cannot be opened.
        SettingsError: the table lacks the column `timestamp`.
    """

    parts: ClassVar[str] = "file"
    """Name of a part of this side in messages, such as file."""

    def __init__(self, address: Address, options: Mapping[str, str], timestamp: str | None) -> None:
        self.address, self.options = address, options
        self.unread: list[str] = []
        self.present: set[int] = set()
        self._stack = ExitStack()
        self._names: list[str] = []
        self._files: list[str] = []
        """Local files that another program may change."""
        try:
            with self._explained():
                self._open()
                self._stamps = [_stamp(file) for file in self._files]
                self._types = self._columns()
            if timestamp is not None and timestamp not in self._types:
                raise SettingsError(f"--timestamp {timestamp!r}: {self._no_column(timestamp)}")
        except BaseException:
            self.close()
            raise
        self.timestamp = timestamp or (TIME_COLUMN if TIME_COLUMN in self._types else None)

    def close(self) -> None:
        """Close files and connections."""
        self._stack.close()

    # -- one for each kind

    def _open(self) -> None:
        """Open a snapshot of the table."""
        raise NotImplementedError

    def _columns(self) -> dict[str, Kind]:
        """Return the type of each column, by column name."""
        raise NotImplementedError

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        """Yield all rows in groups: number of the part, number of the group's first row in it, values by column."""
        raise NotImplementedError

    # --

    def kinds(self, places: Sequence[ValueLocation]) -> list[Kind]:
        """Return the type of the column at each place.

        Raises:
            SettingsError: the table lacks a column.
        """
        found: list[Kind] = []
        for place in places:
            column, rest = self._column(place)
            found.append("any" if rest else self._types[column])
        return found

    def _column(self, place: ValueLocation) -> tuple[str, Sequence[str]]:
        """Return the column of a place, and the place's path within the column's objects."""
        if place.name in self._types:
            return place.name, ()
        if place.path and place.path[0] in self._types:
            return place.path[0], place.path[1:]
        lower = [name for name in self._types if name.lower() == place.name.lower()]
        if len(lower) == 1:
            return lower[0], ()
        raise SettingsError(self._no_column(place.name))

    def _no_column(self, name: str) -> str:
        return f"{self.address} has no column {name!r}; its columns are {', '.join(self._types)}"

    def rows(self, wanted: RequestedValues) -> Iterator[Rows]:
        """Read all rows of the snapshot."""
        from kafka_ratchet.app.compare.column_texts import rows_of

        places = [self._column(place) for place in wanted.places]
        columns = list(dict.fromkeys([*(name for name, _ in places), *([self.timestamp] if self.timestamp else [])]))
        slots = [(columns.index(name), path) for name, path in places]
        at = columns.index(self.timestamp) if self.timestamp else None
        with self._explained():
            for part, first, found in self._read(columns):
                given = [found[slot] if not path else _nested(found[slot], path) for slot, path in slots]
                absent = [number for number in range(len(slots)) if number not in self.present]
                self.present |= {number for number in absent if _is_in(found[slots[number][0]], slots[number][1])}
                rows = rows_of(given, wanted)
                rows.parts, rows.positions = _repeated(part, len(rows)), _numbers(first, len(rows))
                rows.times = _repeated(UNKNOWN_MS, len(rows)) if at is None else _times(found[at])
                yield rows
        changed = [file for file, stamp in zip(self._files, self._stamps, strict=True) if _stamp(file) != stamp]
        self.unread += [f"{self.address}: {file} was changed while it was read. Run again" for file in changed]

    def where(self, part: int, position: int) -> dict[str, Any]:
        """Return table and row number, and the file if there are several."""
        found: dict[str, Any] = {"table": str(self.address), "row": position}
        if self._names:
            found[self.parts] = self._names[part]
        return found

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert errors of the database libraries and the system into `SourceError`.

        Raises:
            SourceError: the table cannot be read.
        """
        try:
            yield
        except (SettingsError, SourceError, ModuleNotFoundError):
            raise
        except Exception as error:
            if not isinstance(error, OSError) and not _is_of_library(error):
                raise
            line = str(error).strip().partition("\n")[0]
            raise SourceError(
                f"{self.address} cannot be read: {type(error).__name__}: {line}. Check the address and its options"
            ) from None


LIBRARIES: Final = frozenset(
    {
        "_csv",
        "_duckdb",
        "deltalake",
        "duckdb",
        "psycopg",
        "psycopg_binary",
        "pyarrow",
        "pyiceberg",
        "pymysql",
        "sqlalchemy",
    }
)
"""Packages of database libraries. An error of one of them means that the table cannot be read."""


def _is_of_library(error: BaseException) -> bool:
    """Return True if a database library has raised the error, whatever the error's class."""
    modules, frames = [type(error).__module__], error.__traceback__
    while frames is not None:
        modules.append(str(frames.tb_frame.f_globals.get("__name__")))
        frames = frames.tb_next
    return any(module.partition(".")[0] in LIBRARIES for module in modules)


def _stamp(file: str) -> tuple[int, ...] | None:
    """Return inode, size and time of a file, to detect changes; None if it does not exist."""
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _nested(column: Column, path: Sequence[str]) -> list[Any]:
    from kafka_ratchet.app.compare.record_columns import at

    return [at(_object(value), path) for value in _list(column)]


def _is_in(column: Column, path: Sequence[str]) -> bool:
    """Return True if any value of the column has the path; always True for the empty path."""
    from kafka_ratchet.app.compare.record_columns import has

    return not path or any(has(_object(value), path) for value in _list(column))


def _list(column: Column) -> list[Any]:
    from kafka_ratchet.app.compare.column_texts import values_of

    return column if isinstance(column, list) else values_of(column)


def _object(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _times(column: Column) -> Any:
    """Return the time of each row in ms; `UNKNOWN_MS` without a time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(column, list) and pa.types.is_timestamp(column.type):
        found = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        return pc.fill_null(found, UNKNOWN_MS)
    return [_ms(value) for value in _list(column)]


def _ms(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = int(value) if value.isdecimal() else datetime.fromisoformat(value)
        except ValueError:
            return UNKNOWN_MS
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value
        return math.floor(moment.timestamp() * 1000)
    return value if isinstance(value, int) and 0 <= value < TIME_MOST_MS else UNKNOWN_MS


# -- Arrow


def _kind(type_: pa.DataType) -> Kind:
    import pyarrow as pa

    types = pa.types
    if types.is_integer(type_) or types.is_decimal(type_):
        return "number"
    if types.is_float64(type_):
        return "float64"
    if types.is_floating(type_):
        return "float32"
    if types.is_timestamp(type_):
        return "timestamp"
    if types.is_date(type_):
        return "date"
    if types.is_time(type_):
        return "time"
    if getattr(type_, "extension_name", None) == "arrow.uuid":
        return "uuid"
    return "boolean" if types.is_boolean(type_) else "any"


def _repeated(value: int | str, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value), count)


def _numbers(first: int, count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.arange(first, first + count, dtype=np.int64))


class ParquetSide(TableSide):
    """Parquet files as one side of a comparison. Each file is read with its own columns and types."""

    def _open(self) -> None:
        from pyarrow import dataset
        from pyarrow.fs import FileSystem

        place = self.address.place
        found = sorted(glob.glob(place)) if any(sign in place for sign in "*?[") else [place]
        if not found:
            raise SourceError(f"{self.address}: the file does not exist. Correct the path")
        if "://" not in place and not Path(found[0]).exists():
            raise SourceError(f"{self.address}: the file or folder does not exist. Correct the path")
        files, path = FileSystem.from_uri(place) if "://" in place else (None, str(Path(found[0]).absolute()))
        made = dataset.dataset(found if len(found) > 1 else found[0], format=_parquet_format(self.address))
        parquet_files.require_plain_files(files or made.filesystem, path, self.address)
        committed = parquet_files.committed_names(Path(path), self.address) if files is None else None
        if committed is None:
            places = [path] if files is not None else [str(Path(name).absolute()) for name in found]
            parquet_files.require_no_list(files or made.filesystem, places, self.address)
        self._fragments = [
            each for each in made.get_fragments() if committed is None or PurePosixPath(each.path).name in committed
        ]
        if not self._fragments:  # which may be so while another program replaces them
            raise SourceError(f"{self.address} holds no Parquet files. Correct the path, or wait until it is written")
        self._names = [fragment.path for fragment in self._fragments]
        if files is None:
            self._files = list(self._names)

    def _columns(self) -> dict[str, Kind]:
        import pyarrow as pa
        from pyarrow.parquet import read_schema

        kinds: dict[str, list[Kind]] = {}
        self._own: list[frozenset[str]] = []
        """Columns of each file."""
        known: dict[frozenset[str], frozenset[str]] = {}
        for fragment in self._fragments:
            schema = read_schema(fragment.path, filesystem=fragment.filesystem)
            names = frozenset(schema.names)
            self._own.append(known.setdefault(names, names))
            for field in schema:
                found = kinds.setdefault(field.name, [])
                if not pa.types.is_null(field.type) and (kind := _kind(field.type)) not in found:
                    found.append(kind)
            for name in parquet_files.folder_values(fragment.path):
                if name not in names and "untyped" not in kinds.setdefault(name, []):
                    kinds[name].append("untyped")
        return {name: parquet_files.common_kind(found) for name, found in kinds.items()}

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        for part, fragment in enumerate(self._fragments):
            own, in_folders = self._own[part], parquet_files.folder_values(fragment.path)
            chosen, first = [name for name in columns if name in own], 0
            for batch in fragment.to_batches(columns=chosen, **_slowly(self.address)):
                if batch.num_rows:
                    found = dict(zip(chosen, batch.columns, strict=True))
                    for name in columns:
                        if name not in found:
                            found[name] = _repeated_text(in_folders.get(name), batch.num_rows)
                        elif self._types[name] == "float64":
                            found[name] = _shortest(found[name])
                    yield part, first, [found[name] for name in columns]
                    first += batch.num_rows


def _parquet_format(address: Address) -> Any:
    from pyarrow.dataset import ParquetFileFormat, ParquetFragmentScanOptions

    return ParquetFileFormat(
        read_options=_parquet_options(),
        default_fragment_scan_options=ParquetFragmentScanOptions(pre_buffer="://" in address.place),
    )


def _parquet_options() -> Any:
    """Return options for times of type INT96 beyond the years 1677 to 2262.

    Spark writes INT96.
    """
    from pyarrow.dataset import ParquetReadOptions

    return ParquetReadOptions(coerce_int96_timestamp_unit="us")


def _slowly(address: Address) -> dict[str, Any]:
    """Return options that keep Arrow from reading ahead of the caller."""
    from pyarrow.dataset import ParquetFragmentScanOptions

    return {
        "batch_size": ROWS,
        "batch_readahead": 0,
        "fragment_readahead": 0,
        "use_threads": False,
        "fragment_scan_options": ParquetFragmentScanOptions(pre_buffer="://" in address.place),
    }


def _repeated_text(value: str | None, count: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, pa.string()), count)


def _shortest(column: pa.Array) -> pa.Array:
    """Convert each 32-bit float to the double with the same shortest text: the float 0.1 becomes the double 0.1."""
    import pyarrow as pa

    return column.cast(pa.string()).cast(pa.float64()) if pa.types.is_float32(column.type) else column


class DeltaSide(TableSide):
    """Delta table, read at its newest version."""

    def _open(self) -> None:
        from deltalake import DeltaTable

        table = DeltaTable(self.address.place, storage_options=dict(self.options) or None)
        self._dataset = table.to_pyarrow_dataset(parquet_read_options=_parquet_options())
        self._fragments = list(self._dataset.get_fragments())
        self._names = [fragment.path for fragment in self._fragments]

    def _columns(self) -> dict[str, Kind]:
        return {field.name: _kind(field.type) for field in self._dataset.schema}

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        for part, fragment in enumerate(self._fragments):
            first = 0
            options = _slowly(self.address)
            for batch in fragment.to_batches(schema=self._dataset.schema, columns=list(columns), **options):
                if batch.num_rows:
                    yield part, first, batch.columns
                    first += batch.num_rows


class IcebergSide(TableSide):
    """Iceberg table, read at its current snapshot. Options are those of its catalog."""

    def _open(self) -> None:
        from pyiceberg.catalog import load_catalog

        properties = dict(self.options)
        folder = properties.pop("path", None)
        if folder is not None:
            from kafka_ratchet.spark_sink.stores.iceberg.catalog import IcebergCatalog

            catalog = IcebergCatalog(folder, {}, properties).connect()
        else:
            catalog = load_catalog(properties.pop("name", "default"), **properties)
        self._table = catalog.load_table(table_names(self.address.place))

    def _columns(self) -> dict[str, Kind]:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return {field.name: _kind(field.type) for field in schema_to_pyarrow(self._table.schema())}

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        first = 0
        for batch in self._table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader():
            if batch.num_rows:
                yield 0, first, batch.select(list(columns)).columns
            first += batch.num_rows


class DuckSide(TableSide):
    """Table of a DuckDB file as one side of a comparison."""

    def _open(self) -> None:
        import duckdb

        if not Path(self.address.place).is_file():
            raise SourceError(f"{self.address}: the file does not exist. Correct the path")
        self._db = duckdb.connect(self.address.place, read_only=True)
        self._stack.callback(self._db.close)
        self._db.execute("SET TimeZone = 'UTC'")
        self._table = ".".join(_quoted(name) for name in table_names(self.address.table))

    def _columns(self) -> dict[str, Kind]:
        relation = self._db.sql(f"SELECT * FROM {self._table} LIMIT 0")  # noqa: S608 - quoted
        fields = _reader(relation).schema
        self._declared = dict(zip(fields.names, map(str, relation.types), strict=True))
        return {field.name: DUCK_KINDS.get(self._declared[field.name], _kind(field.type)) for field in fields}

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        chosen = ", ".join(DUCK_AS.get(self._declared[name], "{}").format(_quoted(name)) for name in columns)
        first = 0
        for batch in _reader(self._db.sql(f"SELECT {chosen} FROM {self._table}")):  # noqa: S608 - quoted
            yield 0, first, batch.columns
            first += batch.num_rows


DUCK_AS: Final[Mapping[str, str]] = {
    "BIT": "{}::VARCHAR",
    "JSON": "CASE json_type({0}) WHEN 'VARCHAR' THEN {0} ->> '$' WHEN 'NULL' THEN NULL ELSE {0}::VARCHAR END",
    "TIME WITH TIME ZONE": "{}::VARCHAR",
    "UHUGEINT": "{}::VARCHAR",
}
"""SQL expressions that read columns as text, by type.

As Arrow values, these columns would lose a time's zone, bits, or the greatest numbers.
"""

DUCK_KINDS: Final[Mapping[str, Kind]] = {"TIME WITH TIME ZONE": "time", "UHUGEINT": "number", "UUID": "uuid"}
"""Kinds of values by DuckDB type, for types without an equivalent in Arrow."""


class CsvSide(TableSide):
    """CSV files with a header line. All values are text; an empty field is null."""

    def _open(self) -> None:
        import duckdb
        from pyarrow.fs import LocalFileSystem

        place = self.address.place
        path = Path(place)
        committed = parquet_files.committed_names(path, self.address)
        if path.is_dir():
            self._names = sorted(
                str(each)
                for pattern in ("*.csv", "*.csv.gz")
                for each in path.rglob(pattern)
                if not any(part.startswith(("_", ".")) for part in each.relative_to(path).parts)
                and (committed is None or each.name in committed)
            )
        else:
            self._names = sorted(glob.glob(place)) or ([place] if path.is_file() else [])
        if not self._names:
            lack = "the folder has no CSV files to read" if path.is_dir() else "the file does not exist"
            raise SourceError(f"{self.address}: {lack}. Correct the path")
        if committed is None:
            places = [str(Path(name).absolute()) for name in self._names]
            parquet_files.require_no_list(LocalFileSystem(), places, self.address)
        self._files = list(self._names)
        self._db = duckdb.connect()
        self._stack.callback(self._db.close)

    def _columns(self) -> dict[str, Kind]:
        return dict.fromkeys(self._relation(self._names[0]).columns, "untyped")

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        chosen = ", ".join(_quoted(name) for name in columns)
        for part, name in enumerate(self._names):
            first = 1
            for batch in _reader(self._relation(name).project(chosen)):
                yield part, first, batch.columns
                first += batch.num_rows

    def _relation(self, name: str) -> Any:
        """Return the rows of a file.

        The CSV dialect is passed to DuckDB, which would otherwise guess it from the first rows, and skip lines that
        begin with # as comments.

        Raises:
            SourceError: the file is empty.
        """
        separator, names = _header(name)
        if not names:
            raise SourceError(
                f"{self.address}: {name} has no header line. Add a first line with the names of the columns"
            )
        return self._db.read_csv(
            name,
            auto_detect=False,
            header=True,
            sep=separator,
            quotechar='"',
            escapechar=self._escape(name, separator),
            columns=dict.fromkeys(names, "VARCHAR"),
        )

    def _escape(self, name: str, separator: str) -> str:
        """Return the character that escapes a quote in a quoted field: a quote, or a backslash as Spark writes it."""
        import duckdb

        try:
            found = self._db.execute(SNIFFED, [name, separator]).fetchall()
        except duckdb.Error:  # reading names the fault
            return '"'
        return "\\" if found[0][0] == "\\" else '"'


SEPARATORS: Final = ",;\t|"

SNIFFED: Final = (
    "SELECT Escape FROM "
    "sniff_csv(?, delim = ?, quote = '\"', comment = '', skip = 0, header = true, all_varchar = true)"
)


def _header(file: str) -> tuple[str, list[str]]:
    """Return the separator and the column names of a CSV file.

    The separator is the most frequent one in the header line.
    """
    opened = gzip.open(file) if file.endswith(".gz") else open(file, "rb")
    with io.TextIOWrapper(opened, "utf-8-sig", "replace") as text:
        line = text.readline()
    bare = re.sub(r'"[^"]*"', "", line)
    separator = max(SEPARATORS, key=bare.count)
    names: list[str] = []
    for name in next(csv.reader([line], delimiter=separator), []):
        twin = sum(each == name for each in names)
        names.append(f"{name}_{twin}" if twin else name)
    return separator, names


def _reader(relation: Any) -> pa.RecordBatchReader:
    """Return the rows of a DuckDB relation as Arrow batches.

    The call changed with DuckDB 1.4.
    """
    read = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
    return read(ROWS)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- servers


class PostgresSide(TableSide):
    """Table of PostgreSQL, read in one read-only transaction."""

    def _open(self) -> None:
        import psycopg
        from psycopg import sql
        from psycopg.types.json import set_json_loads

        connection = psycopg.connect(self.address.place, prepare_threshold=None, client_encoding="UTF8")
        self._stack.callback(connection.close)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        for setting in POSTGRES_SETTINGS:
            connection.execute(setting)
        set_json_loads(partial(json.loads, parse_float=Decimal), connection)
        self._connection = connection
        self._table = sql.Identifier(*table_names(self.address.table))

    def _columns(self) -> dict[str, Kind]:
        from psycopg import sql

        columns = self._connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(self._table)).description or ()
        self._texts = {column.name for column in columns if column.type_code in POSTGRES_AS_TEXT}
        return {column.name: POSTGRES_KINDS.get(column.type_code, "any") for column in columns}

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        from psycopg import sql

        plain, text = sql.SQL("{}"), sql.SQL("{}::text")
        chosen = [(text if name in self._texts else plain).format(sql.Identifier(name)) for name in columns]
        query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(chosen), self._table)
        with self._connection.cursor("ratchet_verify") as cursor:
            cursor.itersize = ROWS
            cursor.execute(query)
            yield from _fetched(cursor.fetchmany, len(columns))


POSTGRES_SETTINGS: Final = (
    "SET LOCAL TimeZone = 'UTC'",
    "SET LOCAL DateStyle = 'ISO'",
    "SET LOCAL extra_float_digits = 1",
    "SET LOCAL row_security = off",
)
"""Statements that set the text form of values, since a role may have another. With `row_security = off`, PostgreSQL
raises an error instead of hiding rows by a policy."""

POSTGRES_AS_TEXT: Final = frozenset({1082, 1083, 1114, 1184, 1266, 3904, 3906, 3908, 3910, 3912, 3926})
"""Types read as text, by number in pg_type: times and ranges.

Python cannot hold some values of these types, such as infinity and the year 10000, and writes others differently.
"""

POSTGRES_KINDS: Final[Mapping[int, Kind]] = {
    16: "boolean",
    20: "number",
    21: "number",
    23: "number",
    700: "float32",
    701: "float64",
    1042: "padded",
    1082: "date",
    1083: "time",
    1114: "timestamp",
    1184: "timestamp",
    1266: "time",
    1700: "number",
    2950: "uuid",
}
"""Types by their number in pg_type; PostgreSQL's source fixes these numbers."""


class MySqlSide(TableSide):
    """Table of MariaDB or MySQL, read in one read-only transaction."""

    def _open(self) -> None:
        import pymysql
        from pymysql.cursors import SSCursor

        from kafka_ratchet.spark_sink.errors import OptionRefused
        from kafka_ratchet.spark_sink.stores.mysql.connection import read_url

        has_password = urlsplit(self.address.place).password is not None
        try:
            address = read_url(self.address.place, None if has_password else os.environ.get("MYSQL_PWD", ""))
        except OptionRefused as error:
            raise SettingsError(f"{self.address}: {error}") from None
        connection = pymysql.connect(**address.parameters, database=address.database, cursorclass=SSCursor)
        self._stack.callback(connection.close)
        self._connection = connection
        for statement in (
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        ):
            with connection.cursor() as cursor:
                cursor.execute(statement)
        self._table = ".".join("`" + name.replace("`", "``") + "`" for name in table_names(self.address.table))

    def _columns(self) -> dict[str, Kind]:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SHOW COLUMNS FROM {self._table}")
            declared = {str(name): _bare(type_).lower() for name, type_, *_ in cursor.fetchall()}
            cursor.execute(f"SELECT * FROM {self._table} LIMIT 0")  # noqa: S608 - quoted
            kinds = {str(each[0]): MYSQL_KINDS.get(int(each[1]), "any") for each in cursor.description or ()}
        named = {name: MYSQL_NAMED[type_] for name, type_ in declared.items() if type_ in MYSQL_NAMED}
        return kinds | {name: kind for name, kind in named.items() if name in kinds}

    def _read(self, columns: Sequence[str]) -> Iterator[Read]:
        quoted = {name: "`" + name.replace("`", "``") + "`" for name in columns}
        # As text, which the server sends, a FLOAT has six digits only.
        floats = [f"{quoted[name]} + 0e0" if self._types[name] == "float32" else quoted[name] for name in columns]
        chosen = ", ".join(floats)
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {chosen} FROM {self._table}")  # noqa: S608 - quoted
            bits = [number for number, each in enumerate(cursor.description or ()) if int(each[1]) == BIT]
            for part, first, found in _fetched(cursor.fetchmany, len(columns)):
                yield part, first, [_numbers_of_bits(each) if at in bits else each for at, each in enumerate(found)]


def _bare(type_: str | bytes) -> str:
    text = type_.decode() if isinstance(type_, bytes) else type_
    return text.partition("(")[0].partition(" ")[0]


MYSQL_NAMED: Final[Mapping[str, Kind]] = {"char": "padded", "uuid": "uuid"}
"""Types that share a number with others in the protocol, by name.

A CHAR counts as padded, because the server returns it without trailing spaces.
"""

BIT: Final = 16
"""Number of the type BIT in MySQL's protocol; drivers return its values as bytes."""


def _numbers_of_bits(column: Column) -> Column:
    return [None if value is None else int.from_bytes(value) for value in column]


MYSQL_KINDS: Final[Mapping[int, Kind]] = {
    0: "number",
    1: "number",
    2: "number",
    3: "number",
    4: "float32",
    5: "float64",
    7: "timestamp",
    8: "number",
    9: "number",
    10: "date",
    11: "time",
    12: "timestamp",
    BIT: "number",
    246: "number",
}
"""Types by their number in MySQL's protocol."""


def _fetched(fetch: Callable[[int], Sequence[Sequence[Any]]], count: int) -> Iterator[Read]:
    first = 0
    while rows := fetch(ROWS):
        yield 0, first, [[row[number] for row in rows] for number in range(count)]
        first += len(rows)


SIDES: Final[Mapping[str, type[TableSide]]] = {
    "postgresql": PostgresSide,
    "mysql": MySqlSide,
    "delta": DeltaSide,
    "iceberg": IcebergSide,
    "duckdb": DuckSide,
    "parquet": ParquetSide,
    "csv": CsvSide,
}


def open_table(address: Address, options: Mapping[str, str], timestamp: str | None) -> TableSide:
    """Open a table by its address; raises as `TableSide` does."""
    return SIDES[address.kind](address, options, timestamp)
