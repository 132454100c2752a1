"""Rules added to a result table in a fault run, and dropped again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kafka_ratchet.spark_sink.stores.location import TableLocation


class TableRule(NamedTuple):
    """Trigger or constraint that makes the job fail, for one kind of store."""

    named: str
    """Text that the job's error must contain."""
    add: Callable[[TableLocation], None]
    drop: Callable[[TableLocation], None]


def _postgres(*statements: str) -> Callable[[TableLocation], None]:
    def execute(place: TableLocation) -> None:
        import psycopg

        with psycopg.connect(place.url, password=place.password, autocommit=True) as database:
            for statement in statements:
                database.execute(statement.replace("TABLE", place.table).encode())

    return execute


def _mysql(statement: str) -> Callable[[TableLocation], None]:
    def execute(place: TableLocation) -> None:
        from contextlib import closing

        import pymysql

        from kafka_ratchet.spark_sink.stores.mysql.connection import read_url

        address = read_url(place.url, place.password)
        with closing(pymysql.connect(**address.parameters, database=address.database)) as database:
            with database.cursor() as cursor:
                cursor.execute(statement.replace("TABLE", place.table))

    return execute


def _add_constraint(place: TableLocation) -> None:
    from deltalake import DeltaTable

    DeltaTable(place.path).alter.add_constraint({"known": "n >= 0"})


def _drop_constraint(place: TableLocation) -> None:
    from deltalake import DeltaTable

    DeltaTable(place.path).alter.drop_constraint("known")


RULES: dict[str, TableRule] = {
    "postgres": TableRule(
        "takes_some",
        _postgres(
            "CREATE OR REPLACE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN IF NEW.n % 7 = 0 THEN RETURN NULL; END IF; RETURN NEW; END$$",
            "CREATE TRIGGER takes_some BEFORE INSERT ON TABLE FOR EACH ROW EXECUTE FUNCTION take()",
        ),
        _postgres("DROP TRIGGER takes_some ON TABLE"),
    ),
    "mysql": TableRule(
        "takes_some",
        _mysql("CREATE TRIGGER takes_some BEFORE INSERT ON TABLE FOR EACH ROW SET NEW._kafka_offset = -1"),
        _mysql("DROP TRIGGER takes_some"),
    ),
    "delta": TableRule("constraint known", _add_constraint, _drop_constraint),
}
"""Rules by kind of store."""
