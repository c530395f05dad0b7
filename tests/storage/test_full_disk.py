"""Rung 1 (values, on files): a disk that takes no more bytes is told with what it was of."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from full_disk import files_of_at_most

import recd_plugins as rp
from recd_plugins.config import parse
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import foreign_files
from recd_plugins.data.importing.table_import import TableImport
from recd_plugins.data.rewrite import RewriteConfig, rewrite
from recd_plugins.errors import DataError
from recd_plugins.testing.batches import random_table
from recd_plugins.testing.probe import SCHEMA


def import_table(folder: Path) -> None:
    item = {"name": "item", "num_ids": 9}
    columns = {"label": "click", "session_id": None, "timestamp": None, "sparse": [item]}
    schema = parse(ForeignSchema, columns, "schema")
    found = survey(foreign_files([folder / "rows.csv"]))
    TableImport(found.files, folder / "table", schema, found.read_as, workers=1).run()


def rewrite_table(folder: Path) -> None:
    rewrite(folder / "source", folder / "table", RewriteConfig())


def prepare_tables(folder: Path) -> None:
    values = {
        "plugins": ["recd_dlrm", "recd_dedup"],
        "folder": str(folder / "tables"),
        "dataset": {"use": "sessions", "samples": 200},
    }
    rp.load({**values, "etl": [{"use": "cluster_by_session", "memory_gb": 5e-5}]}).prepare()


@pytest.mark.parametrize(
    ("work", "writes"),
    [
        (import_table, {"table"}),
        (rewrite_table, {"table"}),
        (prepare_tables, {"tables/sessions", "tables/cluster_by_session"}),
    ],
)
def test_a_full_disk_is_told_with_what_was_written_there(
    work: Callable[[Path], None], writes: set[str], tmp_path: Path
) -> None:
    """However much it takes before; once there is room, the same work comes to its end."""
    random_table(tmp_path / "source", SCHEMA, 200)
    (tmp_path / "rows.csv").write_text("click,item\n" + "1,7\n0,8\n" * 50)
    told = []
    for size in (0, 100, 500, 1_000, 2_000, 4_000, 32_000):
        try:
            with files_of_at_most(size):
                work(tmp_path)
        except OSError as error:
            told.append(f"{error.filename}: {error.strerror}")
        except DataError as error:
            told.append(str(error))
        else:
            break
    else:
        work(tmp_path)
    named = re.compile(
        rf"{tmp_path}/(table\b|tables/[a-z_]+).*(File too large|writing bytes to file)"
    )
    found = [named.match(says) for says in told]
    assert {one and one[1] for one in found} == writes, told


def test_an_import_leaves_nothing_of_which_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("click,item\n1,7\n0,8\n")
    with files_of_at_most(0), pytest.raises(OSError, match="File too large"):
        import_table(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["rows.csv"]
