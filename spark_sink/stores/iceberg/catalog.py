"""Iceberg catalog, which names each table's newest metadata, and its warehouse of files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.files.bucket import Bucket, BucketFolder, Folder
from kafka_ratchet.spark_sink.files.local import LocalFolder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog

NAME = "ratchet"
"""Default name of a catalog. Only SQL catalogs store the name: with two names, one database contains two catalogs."""


class IcebergCatalog:
    """Iceberg catalog with its warehouse.

    Args:
        path: the warehouse: a folder or s3://bucket/folder; without `catalog`, a folder on a disk of this machine.
        storage_options: access to a bucket, see `bucket.OPTIONS`.
        catalog: properties of the catalog, named as in pyiceberg; a `warehouse` among them replaces `path`, and `name`
            is the catalog's name in the tables of an SQL catalog. Empty: the catalog is a SQLite file in `path`.

    Raises:
        OptionRefused: path, options or properties cannot be used.
    """

    def __init__(self, path: str, storage_options: Mapping[str, str], catalog: Mapping[str, str]) -> None:
        self._bucket, self._catalog, self._path = Bucket.of(storage_options), dict(catalog), path
        self._name = self._catalog.pop("name", NAME)
        self._file: Path | None = None
        for name in catalog:
            if name.startswith("s3."):
                raise OptionRefused(
                    f"catalog property {name!r} is not read by Spark's tasks. Give it as a storage option instead"
                )
        if "://" in path:
            if not catalog:
                raise OptionRefused(
                    f"path {path!r}: a bucket cannot contain the SQLite file of the default catalog. Set catalog to "
                    "the properties of another one"
                )
            self._path = BucketFolder(path, storage_options).uri
            return
        # The path becomes part of URLs, which not all readers decode; these characters are the same either way.
        folder = Path(path).absolute()
        if any(character in str(folder) for character in "%?#;\0"):
            raise OptionRefused(
                f"path {path!r}: a folder's path must not contain any of % ? # ; or NUL, because it becomes part of "
                "URLs. Choose another path"
            )
        self._path = str(folder)
        if not catalog:
            self._file = folder / "catalog.db"

    def __str__(self) -> str:
        return self._path if self._file else self._catalog.get("warehouse", self._path)

    def is_there(self) -> bool:
        """Return whether the catalog exists; a catalog on a server counts as existing."""
        return self._file is None or self._file.is_file()

    def make(self) -> None:
        """Create the folder of a catalog in a SQLite file.

        Raises:
            OSError: the folder cannot be created.
        """
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def connect(self) -> Catalog:
        """Open a connection to the catalog."""
        from pyiceberg.catalog import load_catalog
        from pyiceberg.catalog.sql import SqlCatalog

        if self._file is not None:
            return _unpooled(SqlCatalog(NAME, uri=f"sqlite:///{self._file}", warehouse=f"file://{self._path}"))
        properties = {**self._bucket.for_iceberg(), **self._catalog}
        if "://" in self._path:
            properties.setdefault("warehouse", self._path)
        elif properties.get("type") == "sql":  # other catalogs have a warehouse, which a folder here is not
            properties.setdefault("warehouse", f"file://{self._path}")
        catalog = load_catalog(self._name, **properties)
        return _unpooled(catalog) if isinstance(catalog, SqlCatalog) else catalog

    def data_folder(self, location: str) -> Folder:
        """Return the folder that contains a table's files.

        Args:
            location: see `files.data_location`.

        Raises:
            OptionRefused: the location is neither on a disk nor in a bucket of S3.
        """
        if location.startswith("s3://"):
            return BucketFolder(location, self._bucket.options)
        parts = urlsplit(location)
        if parts.scheme not in {"", "file"}:
            raise OptionRefused(
                f"the table's files are in {location}, but the job writes only to folders and to s3://. Choose another "
                "warehouse"
            )
        return LocalFolder(Path(unquote(parts.path)))


def _unpooled(catalog: SqlCatalog) -> SqlCatalog:
    """Replace the catalog's connection pool by connections that end with each call."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    address = catalog.engine.url
    catalog.close()
    catalog.engine = create_engine(address, poolclass=NullPool)
    return catalog
