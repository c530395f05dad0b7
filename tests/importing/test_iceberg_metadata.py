"""Value tests: which metadata file of a folder is the one that describes an Iceberg table now, and
that a doubt is told: an older one would be read as well."""

from __future__ import annotations

import gzip
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recd_plugins.data.files.iceberg_metadata import current_metadata
from recd_plugins.data.files.logs import snapshot_kind
from recd_plugins.errors import DataError
from recd_plugins.storage.uri import location_of

DOUBT = r"only its catalog knows which of metadata/.* is its latest\. Name that file"
Make = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Makes a metadata file, which lists those `before` it."""
    (tmp_path / "metadata").mkdir()

    def make(name: str, at: int, *before: str, table: str = "one") -> Path:
        file = tmp_path / "metadata" / name
        described: dict[str, Any] = {
            "table-uuid": table,
            "last-updated-ms": at,
            "metadata-log": [
                {"metadata-file": f"s3://lake/t/metadata/{one}", "timestamp-ms": 0}
                for one in before
            ],
        }
        raw = json.dumps(described).encode()
        file.write_bytes(gzip.compress(raw) if ".gz" in name else raw)
        return file

    return make


def hint(table: Path, text: str) -> None:
    (table / "metadata" / "version-hint.text").write_text(text)


def test_the_highest_number_is_the_latest(made: Make, tmp_path: Path) -> None:
    made("00000-a.metadata.json", 1)
    made("00009-b.metadata.json", 2, "00000-a.metadata.json")
    last = made("00010-c.metadata.json", 3, "00000-a.metadata.json", "00009-b.metadata.json")
    assert current_metadata(tmp_path) == last
    assert current_metadata(last) == last


def test_one_that_was_tried_and_left_is_told_by_what_came_after(made: Make, tmp_path: Path) -> None:
    """While it is of the latest number, nothing tells it from the other."""
    made("00001-a.metadata.json", 1)
    made("00002-left.metadata.json", 2, "00001-a.metadata.json")
    made("00002-b.metadata.json", 3, "00001-a.metadata.json")
    with pytest.raises(DataError, match=DOUBT):
        current_metadata(tmp_path)
    last = made("00003-c.metadata.json", 4, "00001-a.metadata.json", "00002-b.metadata.json")
    assert current_metadata(tmp_path) == last


def test_a_catalog_of_hadoop_says_it_in_the_folder(made: Make, tmp_path: Path) -> None:
    """By a number or a name; the commit that made the next file may have died before it said so."""
    first = made("v1.metadata.json", 1)
    made("00002-left.metadata.json", 1, first.name)
    second = made("v2.gz.metadata.json", 2, first.name)
    for said in ("2", "2\n", "1", "v2.gz", "v2.gz.metadata.json"):
        hint(tmp_path, said)
        assert current_metadata(tmp_path) == second
    hint(tmp_path, "")
    with pytest.raises(DataError, match=DOUBT):
        current_metadata(tmp_path)


@pytest.mark.parametrize("said", ["7", "v7", "old"])
def test_a_hint_at_what_is_not_there_is_told(made: Make, tmp_path: Path, said: str) -> None:
    """As of a copy of a part of the folder."""
    made("v1.metadata.json", 1)
    hint(tmp_path, said)
    with pytest.raises(DataError, match=rf"version-hint\.text: says '{said}'.*Copy the whole"):
        current_metadata(tmp_path)


def test_a_hint_that_is_older_than_another_file_decides_nothing(made: Make, tmp_path: Path) -> None:
    """As where the table went from Hadoop to another catalog, which numbers files from 0 on."""
    for number in range(1, 6):
        made(f"v{number}.metadata.json", number)
    hint(tmp_path, "5")
    made("00000-a.metadata.json", 8, "v5.metadata.json")
    with pytest.raises(DataError, match=DOUBT):
        current_metadata(tmp_path)


def test_of_two_ways_to_number_files_the_latter_lists_the_former(
    made: Make, tmp_path: Path
) -> None:
    """Be it that the first of them alone does, and the latest has a list of fewer."""
    made("v5.metadata.json", 5)
    last = made("00002-c.metadata.json", 8)
    with pytest.raises(DataError, match=DOUBT):
        current_metadata(tmp_path)
    made("00001-b.metadata.json", 7, "v5.metadata.json")
    assert current_metadata(tmp_path) == last


def test_a_table_that_was_dropped_leaves_files_of_higher_numbers(
    made: Make, tmp_path: Path
) -> None:
    """A new one at its place counts from 0 again."""
    for number in range(6):
        made(f"0000{number}-old.metadata.json", number, table="old")
    made("00000-new.metadata.json", 9, table="new")
    with pytest.raises(DataError, match=DOUBT):
        current_metadata(tmp_path)


def test_files_without_numbers_are_told_by_what_they_list(made: Make, tmp_path: Path) -> None:
    """As catalogs name them that need no order; some names begin with digits."""
    names = [f"12345678{str(uuid.UUID(int=one))[8:]}.metadata.json" for one in range(3)]
    only = made(names[0], 1)
    assert current_metadata(tmp_path) == only
    made(names[1], 2, names[0])
    last = made(names[2], 3, names[0], names[1])
    assert current_metadata(tmp_path) == last
    made("left.metadata.json", 3, names[0], names[1])
    with pytest.raises(DataError, match=DOUBT):
        current_metadata(tmp_path)


def test_one_that_is_packed_under_an_old_name_is_told(made: Make, tmp_path: Path) -> None:
    """Its folder is one of Iceberg's all the same: what lies there is no table by itself."""
    made("v1.metadata.json.gz", 1)
    assert snapshot_kind(tmp_path) == "iceberg"
    with pytest.raises(DataError, match=r"Unpack it \(gunzip -k v1\.metadata\.json\.gz\)"):
        current_metadata(tmp_path)


def test_what_cannot_be_read_is_told(made: Make, tmp_path: Path) -> None:
    """Unless it is of before the latest."""
    first = made("00001-a.metadata.json", 1)
    last = made("00002-b.metadata.json", 2, first.name)
    first.write_text("half of a")
    assert current_metadata(tmp_path) == last
    for text in ("half of a", "[]", '{"last-updated-ms": "late"}'):
        last.write_text(text)
        with pytest.raises(DataError, match=r"00002-b.*cannot be read as metadata of an Iceberg"):
            current_metadata(tmp_path)


def test_files_on_a_store_are_told_alike(made: Make, tmp_path: Path) -> None:
    made("v1.metadata.json", 1)
    made("v2.metadata.json", 2, "v1.metadata.json")
    hint(tmp_path, "1")
    table = location_of(f"memory://{uuid.uuid4().hex}/t")
    for file in (tmp_path / "metadata").iterdir():
        (table / "metadata" / file.name).write_bytes(file.read_bytes())
    assert str(current_metadata(table)).endswith("/t/metadata/v2.metadata.json")
    shutil.rmtree(tmp_path / "metadata")
    with pytest.raises(DataError, match=r"holds no metadata/\*\.metadata\.json"):
        current_metadata(tmp_path)
