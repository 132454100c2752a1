"""A store of one's own is a folder and a line: it passes what the four of the job pass, here the heart of it.

With `-m long` every test over `site` runs on it as well.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafka_ratchet.app.settings import SinkSettings
from kafka_ratchet.spark_sink.errors import OptionRefused
from kafka_ratchet.spark_sink.stores.registry import STORES, store_class
from tests.spark_sink.sites import FolderSite, Site
from tests.spark_sink.stores.test_stores import (  # noqa: F401  # collected here too, for the site below
    frame,
    test_a_commit_whose_answer_is_an_error_is_a_commit_all_the_same,
    test_a_holder_that_dies_at_any_step_leaves_rows_and_offsets_that_agree,
    test_jobs_of_other_names_share_the_table,
    test_rejects_are_in_the_same_commit,
    test_rows_and_offsets_of_sparse_partitions_come_back,
    test_the_older_of_two_is_fenced_before_and_after_it_has_written,
    test_totals_are_exact_and_only_the_holder_adds_to_them,
)

MODULES = Path(__file__).parents[3]


@pytest.fixture
def site(folder_store: None, tmp_path: Path) -> Site:
    return FolderSite(tmp_path)


def test_settings_and_command_line_know_it_by_its_line(folder_store: None) -> None:
    assert SinkSettings(store="folder").store == "folder"
    assert store_class("folder").__name__ == "FolderStore"


def test_names_that_are_not_in_the_table_are_refused() -> None:
    with pytest.raises(ValueError, match="'delta', 'postgres', 'mysql', 'duckdb' or 'iceberg'"):
        SinkSettings(store="folder")
    with pytest.raises(OptionRefused, match="is unknown; write one of delta, postgres, mysql, duckdb, iceberg"):
        store_class("folder")


def test_settings_know_the_names_and_import_no_store() -> None:
    program = "import sys, kafka_ratchet.app.settings; print({'pyspark', 'pyarrow', 'deltalake'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=MODULES, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_no_module_outside_of_a_stores_folder_asks_which_store_it_is() -> None:
    """What differs between stores is an attribute or a method of theirs."""
    named = [
        f"{path}:{number}"
        for folder in ("spark_sink", "app")
        for path in sorted((MODULES / folder).rglob("*.py"))
        if not any(f"stores/{kind}/" in path.as_posix() for kind in STORES)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for kind in STORES
        if f'== "{kind}"' in line or f'!= "{kind}"' in line or (f'"{kind}"' in line and " in {" in line)
    ]
    assert not named
