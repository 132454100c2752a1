"""State of a job in a PostgreSQL database, and the sessions that read and change it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka_ratchet.spark_sink.errors import first_line, refuse, refuse_rule
from kafka_ratchet.spark_sink.spark.errors import reason_of, spark_errors
from kafka_ratchet.spark_sink.stores.location import TableLocation
from kafka_ratchet.spark_sink.stores.postgres.marks import Marks
from kafka_ratchet.spark_sink.stores.postgres.stored_rows import DEFERRED, NOT_BEFORE, TAKERS
from kafka_ratchet.spark_sink.stores.postgres.tasks import Connection
from kafka_ratchet.spark_sink.stores.postgres.types import conninfo, names, table_parts
from kafka_ratchet.spark_sink.stores.sql_job_state import OF_JOB, SqlJobState, Statements
from kafka_ratchet.spark_sink.stores.sql_tables import is_of_generation

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

    from kafka_ratchet.spark_sink.stores.postgres.types import Database

LOCK_TIMEOUT_MS = 30_000
"""Milliseconds that a statement waits for another session's lock. A job keeps a lock no longer than a commit, and a
take-over ends the sessions of the earlier job. So a longer wait is a fault, and ends in an error."""

VISIT_TIMEOUT_MS = 10_000
"""Milliseconds that a session outside of a job may be idle in a transaction; all its transactions are short."""

VISITOR = "sink-visitor"
"""Application name of a session that does not belong to a running job."""

END_TIMEOUT_MS = 5_000
"""Milliseconds that a take-over waits for the end of a session that it has terminated."""

OF_PARTITION = "Nothing of the record's partition was added, and its offset has not moved"
"""Sentence about the extent of a refusal in a task, which commits one partition."""

RAISED = "P0001"
"""SQLSTATE of an error raised by a function."""

RULE_BROKEN = re.compile(r"psycopg\.errors\.((?!Protocol)[A-Z]\w+Violation|RaiseException): (.*)")
"""Pattern of the last line of a task's failure by a constraint or a raising trigger. It excludes ProtocolViolation,
which comes from poolers."""

STATEMENTS = Statements(
    stored=f"SELECT partition, next FROM {{offsets}} {OF_JOB} ORDER BY partition",  # noqa: S608
    move="INSERT INTO {offsets} VALUES ({result}, {job}, {topic}, {partition}, {next}, {identity}) "
    "ON CONFLICT (result, job, topic, partition) DO UPDATE SET next = {next}, identity = {identity}",
    take_over="INSERT INTO {jobs} AS job VALUES ({result}, {job}, 1) "
    "ON CONFLICT (result, job) DO UPDATE SET generation = job.generation + 1",
    note_write_mode="INSERT INTO {rules} VALUES ({result}, {job}, {write_mode}) "
    "ON CONFLICT (result, job) DO UPDATE SET rule = {write_mode}",
    decide="INSERT INTO {decisions} VALUES ({result}, {job}, {topic}, now(), {decision})",
)


class JobState(SqlJobState["Database"]):
    """State of a job in a PostgreSQL database, see `SqlJobState`.

    The application name of a job's session contains the job's name and generation.

    Args:
        location: see `PostgresStore`.
        name: the job's name.
        topic: the topic that the offsets belong to.
        topic_id: the topic's id; 0: unknown.
        relations: the tables that the offsets belong to: the result table and, if there is one, the table of rejects.

    Raises:
        OptionRefused: the url or the table's name cannot be used.
    """

    statements = STATEMENTS

    def __init__(
        self, location: TableLocation, name: str, topic: str, topic_id: int, relations: Sequence[str] = ()
    ) -> None:
        super().__init__(location.table, name, topic, topic_id)
        self._conninfo, where = conninfo(location.url, location.password)
        self.where = f"{location.table} in {where}"
        self._schema = table_parts(location.table)[:-1]
        self.marks: Marks = Marks(self, topic_id, relations)
        self._location = location
        digest = hashlib.sha256(f"{location.table}\0{name}".encode()).hexdigest()[:12]
        # Prefix of this job alone, short enough for a name of the server; the holder's generation follows it. A
        # take-over ends the sessions and drops the staging tables of the earlier generations.
        self._application = f"sink:{name[:24]}:{digest}:"
        self.staging = f"ratchet_stage_{digest}_"

    def of_job(self, name: str) -> JobState:
        """Return the state of another job with the same result table."""
        return JobState(self._location, name, self._topic, 0)

    def is_same_table(self, result: str) -> bool:
        return self.table_of(result) == self.table_of(self.result)  # the bookkeeping lies in the table's schema

    def table_of(self, result: str) -> str:
        return table_parts(result)[-1]

    def gone_table(self, database: Database) -> str:
        return super().gone_table(database) or self._moved_from(database)

    def _moved_from(self, database: Database) -> str:
        """Return the former name of the result table if ALTER TABLE SET SCHEMA moved it here; empty: it was not moved.

        Such a table keeps its oid, while the tables with the job's state stay in the former schema.
        """
        from psycopg import sql

        oid, _ = self.marks.number(database, self.table_of(self.result))
        if not oid or self.generations(database):
            return ""
        elsewhere = self.run(
            database,
            "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE relname = 'ratchet_sink_marks' AND relnamespace <> (SELECT relnamespace FROM pg_class WHERE oid = "
            "{oid}) AND has_schema_privilege(relnamespace, 'USAGE') AND has_table_privilege(pg_class.oid, 'SELECT')",
            oid=self.literal(oid),
        )
        for (schema,) in elsewhere:
            found = self.run(
                database,
                "SELECT result FROM {there} WHERE oid = {oid} AND topic = {topic} LIMIT 1",
                there=sql.Identifier(str(schema), "ratchet_sink_marks"),
                oid=self.literal(oid),
            )
            if found:
                return f"{schema}.{self.table_of(str(found[0][0]))}"
        return ""

    # -- sessions

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Connect to the database for the duration of one call; the caller opens each `transaction`.

        A pooler may give each transaction another session of the server, and may then give that session to other
        programs. So no setting and no prepared statement of the job lasts longer than a transaction.

        Raises:
            RuleBroken: a row breaks a constraint, or a trigger refused it.
            StoreError: the database refuses, or does not answer.
        """
        import psycopg

        try:
            with psycopg.connect(
                self._conninfo, autocommit=True, client_encoding="UTF8", prepare_threshold=None
            ) as database:
                yield database
        except (psycopg.IntegrityError, psycopg.errors.RaiseException) as error:
            refuse_rule(self.where, first_line(error), _raised_by(error))
        except psycopg.errors.ProtocolViolation as error:
            refuse(self.where, error, "pool_mode of the pooler in the url: it has to be transaction or session")
        except psycopg.Error as error:
            refuse(self.where, error, "the database and the job's rights in it")

    def refuse_rule_of_task(self, error: Exception) -> None:
        """Raise `RuleBroken` if the error of a task is a broken rule of the table; else do nothing."""
        if not isinstance(error, spark_errors()) or not (found := RULE_BROKEN.search(reason_of(error))):
            return
        names = ""
        if found[1] == "RaiseException":  # its text is the function's own
            with self.database() as database:
                [(names,)] = self.run(database, TAKERS, table=self.name_literal(self.table_of(self.result)))
        refuse_rule(self.where, found[2], names, OF_PARTITION)

    @contextmanager
    def transaction(self, database: Database, generation: int | None = None) -> Iterator[None]:
        """Run a transaction with its settings, and commit it unless the caller raises.

        Args:
            database: connection without an open transaction.
            generation: generation of the calling job, so that a take-over finds the session; None: the caller is not a
                running job.
        """
        settings = {"lock_timeout": str(LOCK_TIMEOUT_MS), "row_security": "off"}
        if generation is None:  # a session that no take-over finds is ended by the server
            settings |= {"application_name": VISITOR, "idle_in_transaction_session_timeout": str(VISIT_TIMEOUT_MS)}
        else:
            settings["application_name"] = self.application(generation)
        with database.transaction():
            local = ", ".join(["set_config(%s, %s, true)"] * len(settings))
            database.execute(f"SELECT {local}".encode(), [part for each in settings.items() for part in each])
            yield

    def application(self, generation: int) -> str:
        """Return the application name of a generation's sessions."""
        return f"{self._application}{generation}"

    def connection(self, generation: int) -> Connection:
        """Return the connection data for tasks of a generation, for a server that accepts writes.

        A replica may not have the last commit yet, on which a task depends.
        """
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        address = self._conninfo
        if "target_session_attrs" not in conninfo_to_dict(address) and "PGTARGETSESSIONATTRS" not in os.environ:
            address = make_conninfo(address, target_session_attrs="read-write")
        return Connection(address, self.application(generation), LOCK_TIMEOUT_MS)

    def end_sessions(self, database: Database, newest: int) -> None:
        """End the sessions of a job up to a generation.

        The open COPY of a frozen session would block the next run.
        """
        with self.transaction(database):
            found = database.execute(
                "SELECT DISTINCT application_name FROM pg_stat_activity "
                "WHERE starts_with(application_name, %s) AND datname = current_database()",
                (self._application,),
            ).fetchall()
        for (application,) in found:
            if is_of_generation(application, self._application, newest):
                # By name, and in a transaction that looks again: a pooler gives sessions to other programs.
                with self.transaction(database):
                    database.execute(
                        "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity "
                        "WHERE application_name = %s AND datname = current_database()",
                        (END_TIMEOUT_MS, application),
                    )

    # -- statements

    def table(self, name: str) -> sql.Identifier:
        """Return the quoted name of a table in the result table's schema."""
        from psycopg import sql

        return sql.Identifier(*self._schema, name)

    def literal(self, value: str | int) -> sql.Literal:
        from psycopg import sql

        return sql.Literal(value)

    def names(self, columns: Sequence[str]) -> sql.Composed:
        return names(columns)

    def _composed(self, statement: str, parts: Mapping[str, Any]) -> sql.Composed:
        from psycopg import sql

        return sql.SQL(statement).format(**parts)

    def execute(self, database: Database, statement: sql.Composed) -> list[tuple[Any, ...]]:
        from psycopg.pq import TransactionStatus

        if database.info.transaction_status == TransactionStatus.IDLE:
            with self.transaction(database):
                return self.execute(database, statement)
        cursor = database.execute(statement)
        return cursor.fetchall() if cursor.description else []

    def task_statements(self, table: str, copy: str, write_mode: str) -> dict[str, str]:
        """Return the SQL statements for tasks, with `%s` for partition and offset.

        Args:
            table: table that the tasks fill.
            copy: COPY statement that fills the table.
            write_mode: text of the rows' write mode.
        """
        statements = {
            # A partitioned table, or a view, has no file.
            "table": "SELECT to_regclass({table})::oid::bigint, "
            "coalesce(pg_relation_filenode(to_regclass({table})), 0)::bigint",
            # From now on an empty table counts as emptied, even before the commit has ended.
            "filled": "UPDATE {marks} SET filled = true "
            "WHERE result = {result} AND job = {job} AND topic = {topic} AND relation = {relation} AND NOT filled",
            # With the first rows: a write mode without offsets means that the offsets were lost.
            "rule": "INSERT INTO {rules} VALUES ({result}, {job}, {write_mode}) ON CONFLICT DO NOTHING",
            "takers": TAKERS,
            "later": NOT_BEFORE,
            "deferred": DEFERRED,
            "present": "SELECT count(*) FROM {place} WHERE _kafka_partition = %s AND _kafka_offset >= %s "
            "AND _kafka_offset < %s",
            "holder": "SELECT generation FROM {jobs} WHERE result = {result} AND job = {job} FOR SHARE",
            "first": "INSERT INTO {offsets} VALUES ({result}, {job}, {topic}, %s, %s, {identity}) "
            "ON CONFLICT DO NOTHING",
            "stored": "SELECT next FROM {offsets} WHERE result = {result} AND job = {job} AND topic = {topic} "
            "AND partition = %s FOR UPDATE",
            "move": "UPDATE {offsets} SET next = %s, identity = {identity} "
            "WHERE result = {result} AND job = {job} AND topic = {topic} AND partition = %s",
        }
        return {
            name: self.text(
                text,
                table=self.name_literal(table),
                place=self.table(table),
                relation=self.literal(table),
                write_mode=self.literal(write_mode),
            ).as_string(None)
            for name, text in statements.items()
        } | {"copy": copy}

    def is_there(self, database: Database) -> bool:
        names = [self.name_literal(name) for name in ("ratchet_sink_jobs", "ratchet_sink_offsets")]
        [(both,)] = self.run(
            database,
            "SELECT to_regclass({one}) IS NOT NULL AND to_regclass({two}) IS NOT NULL",
            one=names[0],
            two=names[1],
        )
        return bool(both)

    def has_table(self, database: Database, name: str) -> bool:
        [(found,)] = self.run(database, "SELECT to_regclass({name}) IS NOT NULL", name=self.name_literal(name))
        return bool(found)

    def name_literal(self, name: str) -> sql.Literal:
        """Return a table's name in the result's schema as text for `to_regclass`."""
        return self.literal(self.table(name).as_string(None))


def _raised_by(error: psycopg.Error) -> str:
    """Return PostgreSQL's context line of the trigger function that raised the error; empty: a constraint did."""
    context = (error.diag.context or "").partition("\n")[0]
    return context if error.sqlstate == RAISED else ""
