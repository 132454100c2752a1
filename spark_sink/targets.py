"""Targets of `exactly_once`: the location of a table by its address, its path, or its name in Spark's catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from kafka_ratchet.spark_sink.errors import OptionRefused, first_line
from kafka_ratchet.spark_sink.rows.distinct import quoted
from kafka_ratchet.spark_sink.stores.location import TableAddress, TableLocation
from kafka_ratchet.spark_sink.stores.registry import store_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES_OF_SERVERS: Final = {"postgresql": "postgres", "mysql": "mysql"}
"""Kind of the store by the scheme of an address."""
PROVIDERS: Final = frozenset({"delta"})
"""Formats of tables in Spark's catalog that Ratchet opens by their location."""
SESSION_CATALOG: Final = "spark_catalog"
"""Name of the catalog that each Spark session has."""
DRIVERS: Final = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
"""Scheme of a SQLAlchemy address, by the scheme of a JDBC address."""
CATALOG_NAME: Final = re.compile(r"[\w`-]+(?:\.[\w`-]+)+\Z")

IN_BACKQUOTES: Final = re.compile(r"`[^`.]*\.[^`]*`")
"""Pattern of a quoted name with a dot."""


def location_of(
    target: str, storage: Mapping[str, str], catalog: Mapping[str, str], password: str | None = None
) -> TableLocation | None:
    """Return the table's location; None for a name in a catalog, which Spark looks up."""
    found = TableAddress.parse(target)
    match found.scheme if found is not None else "":
        case "postgresql" | "mysql" if found is not None:
            if not found.table:
                raise OptionRefused(f"{found.scheme}: the address names no table. Add ?table=NAME")
            kind = STORES_OF_SERVERS[found.scheme]
            return TableLocation(kind, "", found.table, found.place, password)
        case "duckdb" if found is not None:
            return TableLocation("duckdb", found.place, found.table or "results")
        case "iceberg" if found is not None:
            properties = dict(catalog)
            path = properties.pop("path", "")
            return TableLocation("iceberg", path, found.place, storage_options=storage, catalog=properties)
        case "delta" if found is not None:
            return TableLocation("delta", found.place, storage_options=storage)
    if "/" in target or target in PROVIDERS:
        return TableLocation("delta", target, storage_options=storage)
    if not CATALOG_NAME.match(target):
        raise OptionRefused(
            f"{target!r} is not a target: write a table such as prod.sales.orders, a path, or an address"
        )
    return None


def place_of(location: TableLocation) -> tuple[str, ...]:
    """Return the parts of a location that identify its table: two spellings of one table have the same."""
    path = _without_file(location.path)
    if "://" in path:
        path = re.sub(r"^s3[an]:", "s3:", path).rstrip("/")
    elif path:
        path = os.path.realpath(path)
    table = location.table if store_class(location.kind).has_tables else ""
    servers = [urlsplit(each) for each in (location.url, location.catalog.get("uri", ""))]
    named = (f"{each.scheme}://{each.netloc.rpartition('@')[2]}{each.path}".rstrip("/") for each in servers)
    return location.kind, path, table, *named


def location_in_catalog(
    target: str, spark: SparkSession | None, storage: Mapping[str, str], catalog: Mapping[str, str]
) -> TableLocation:
    """Return the location of a table that Spark's catalog knows.

    Raises:
        OptionRefused: the catalog has no such table, its format is neither Delta nor Iceberg, or its name cannot be
            read. An Iceberg table need not exist: the first commit creates it.
    """
    if spark is None:
        raise OptionRefused(
            f"{target}: only a running Spark can look this name up in its catalog. Start Spark first, or give the "
            "table's path or address"
        )
    name, _, rest = target.replace("`", "").partition(".")
    settings = _settings_of(spark, f"spark.sql.catalog.{name}")
    if not settings[""] and name != SESSION_CATALOG:  # the name begins with a namespace of the current catalog
        name, rest = spark.catalog.currentCatalog(), f"{name}.{rest}"
        settings = _settings_of(spark, f"spark.sql.catalog.{name}")
    if "iceberg" in settings[""].lower():
        if IN_BACKQUOTES.search(target):
            raise OptionRefused(
                f"{target}: a name with a dot in backquotes is not supported, because pyiceberg separates names by "
                "dots. Choose another table"
            )
        if "." not in rest:
            raise OptionRefused(f"{target}: write the table with its namespace, as in {name}.NAMESPACE.{rest}")
        properties = iceberg_catalog(target, name, settings) | dict(catalog)
        return TableLocation(
            "iceberg",
            properties.pop("path", ""),
            rest,
            storage_options=storage,
            catalog=properties,
            spark_name=".".join(map(quoted, (name, *rest.split(".")))),
        )
    try:
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {target}").collect()
    except Exception as error:
        raise OptionRefused(
            f"{target}: Spark's catalog has no such table ({first_line(error)}). Create it, or name a path"
        ) from None
    about = {row["col_name"].lower(): row["data_type"] for row in described}
    provider, place = about.get("provider", "").lower(), about.get("location", "")
    if provider not in PROVIDERS or not place:
        raise OptionRefused(
            f"{target} is a table of {provider or 'no provider'}, but only delta and iceberg are supported. Choose "
            "another table"
        )
    return TableLocation(provider, _without_file(place), storage_options=storage)


def _without_file(path: str) -> str:
    """Return a path without the scheme `file:`."""
    return re.sub(r"^file:/+", "/", path)


def _settings_of(spark: SparkSession, prefix: str) -> dict[str, str]:
    """Return Spark's settings below a prefix, by the rest of their names; "" has the setting named like the prefix."""
    names = [str(row["key"]) for row in spark.sql("SET").collect()]
    # SET itself replaces each value with "token" or "password" in its name or text.
    found = {
        name[len(prefix) + 1 :]: spark.conf.get(name, None) or "" for name in names if name.startswith(f"{prefix}.")
    }
    return {**found, "": spark.conf.get(prefix, None) or ""}


def iceberg_catalog(target: str, name: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Translate the properties of Spark's Iceberg catalog into properties of `IcebergCatalog`.

    Properties of a bucket are left out: Spark's tasks take them from `storage_options`.

    Raises:
        OptionRefused: pyiceberg does not support this kind of catalog.
    """
    kinds: Mapping[str, str] = {"rest": "rest", "hive": "hive", "glue": "glue", "jdbc": "sql"}
    kind = settings.get("type") or ("rest" if "rest" in settings.get("catalog-impl", "").lower() else "")
    kind = kind or ("jdbc" if "jdbc" in settings.get("catalog-impl", "").lower() else "")
    if kind not in kinds:
        raise OptionRefused(
            f"{target}: a catalog of type {kind or 'unknown'} is not supported; use one of {', '.join(kinds)}"
        )
    left_out = ("catalog-impl", "type", "s3.", "jdbc.")
    kept = {key: value for key, value in settings.items() if key and not key.startswith(left_out)}
    if kind == "jdbc":
        user, password = settings.get("jdbc.user", ""), settings.get("jdbc.password", "")
        kept |= {"name": name, "uri": _sql_address(kept.get("uri", ""), user, password)}
    return {"type": kinds[kind], **kept}


def _sql_address(jdbc: str, user: str, password: str) -> str:
    """Translate the address of a database from JDBC's form into SQLAlchemy's."""
    address = jdbc.removeprefix("jdbc:")
    if address.startswith("sqlite:"):
        return "sqlite:///" + address.removeprefix("sqlite:").removeprefix("file:").partition("?")[0]
    parts = urlsplit(address)
    query = dict(parse_qsl(parts.query))
    user, password = user or query.pop("user", ""), password or query.pop("password", "")
    access = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place = f"{access}@{parts.netloc}" if access else parts.netloc
    return urlunsplit((DRIVERS.get(parts.scheme, parts.scheme), place, parts.path, urlencode(query), ""))
