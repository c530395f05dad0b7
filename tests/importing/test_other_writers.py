"""Value tests: Parquet as other programs leave it behind, read right or refused by name."""

from __future__ import annotations

import base64
import datetime
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from strangers_files import clicks, text, write
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.data.files.found import found_files
from recd_plugins.data.foreign import ForeignSchema
from recd_plugins.data.importing.proposing.proposal import propose
from recd_plugins.data.importing.schema_file import load_schema
from recd_plugins.data.importing.surveying.survey import survey
from recd_plugins.data.importing.table_files import files_of, foreign_files
from recd_plugins.data.table import Table
from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning

DRAW = np.random.default_rng(0)
ROWS = 300
SCHEMA = ForeignSchema(session_id=None, timestamp="at", label="clicked")
INT128 = """
eNp9UsFO20AQHW+twKGqcmBWXikHX7BAWDRZCI6rXtZpRCPAOFGlSIiLiWOTNsUopqTlI/iAnjj3wB/xC4hP6KwDgUoVT6uZ
2Zn33s5hI9VvoIlVrO4jQ3gGgm661KxiBSsAjJrMgDdoiiZUqsJaGk7Gw2+jBIEzfsyPHeksa5mLrpbBS5kB/wLfiVWoCMsY
l+qQh86NAaLGJUpOc6puDAx1iUx8/GxO8/wCTUBzlS0eJhe0kZEJeYiacJ1ro/b6evw3wxVw7on33w34LUMO/I/BmbNMaUWv
Yr1V/f7h4EMxPB19j60H473GzkwROjq0Lun+s/d4L1t7ShWqXeae2ohoPiv5XaWyR15X57oOgQ4Hn4jUyhamc14wT4T9rzTf
mNdPT6ngXFee9r/KFqLdktRpl8ygq/0pd/Q+hNncI/pCIv+FX6baPW2aqUBTdsMiHoTTo0FPgRVG+SSeFvba+a+L0/xs3b4c
TYtxfmbLzcZm3V47+TGeJLaX+nV5kmylaSK9NG3JpLEtvVZc92PpN9NUpl48Sny5LtwaAB24o48R0Rf8C4SXg6c=
"""


def recd(*words: object, fails: int = 0) -> str:
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == fails, result.output
    return result.stderr if fails else result.stdout


def proposed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = propose(survey(foreign_files([path]))).schema
    return found


def plain(folder: Path, **columns: Any) -> Path:
    labels = DRAW.integers(0, 2, ROWS)
    pq.write_table(pa.table({"clicked": labels, **columns}), folder / "a.parquet")
    return folder / "a.parquet"


def test_old_times_may_be_of_any_year(tmp_path: Path) -> None:
    """INT96, as Spark and Impala wrote times, where the year 9999 stands for none."""
    years = [1, 1969, 2024, 9999]
    times = [datetime.datetime(year, 12, 31, 23, 59, 59, 999_999) for year in years]
    table = pa.table({"clicked": [0, 1, 0, 1], "at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    since = datetime.datetime(1970, 1, 1)
    ms = [(one - since) // datetime.timedelta(milliseconds=1) for one in times]
    opened = Table.open(tmp_path / "a.parquet", SCHEMA)
    assert opened.read(opened.stripes[0])["at"].to_pylist() == ms
    file = text(tmp_path / "schema.yaml", "{session_id: null, timestamp: at, label: clicked}")
    recd("data", "import", tmp_path / "a.parquet", tmp_path / "t", "--schema", file)
    assert pq.read_table(next((tmp_path / "t").glob("*.parquet")))["at"].to_pylist() == ms


def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path) -> None:
    """Not even where rows were shuffled or put together of several frames."""
    index, item = DRAW.permutation(ROWS), DRAW.zipf(1.4, ROWS) % 50
    path = plain(tmp_path, item_id=item, __index_level_0__=index)
    found = survey(foreign_files([path]))
    assert [one["name"] for one in propose(found).schema["sparse"]] == ["item_id"]
    assert "__index_level_0__: the index of a data frame" in propose(found).text
    rows = [f"{n},{n % 2},{one}\n" for n, one in zip(index, item, strict=True)]
    for name in ("", "Unnamed: 0"):
        csv = text(tmp_path / "a.csv", "".join([f"{name},clicked,item_id\n", *rows]))
        assert [one["name"] for one in proposed(csv)["sparse"]] == ["item_id"]
    half = text(tmp_path / "a.csv", "".join(["place,clicked,item_id\n", *rows[::2]]))
    assert [one["name"] for one in proposed(half)["sparse"]] == ["place", "item_id"]
    named = text(tmp_path / "a.csv", "".join(["place,clicked,item_id\n", *rows]))
    assert [one["name"] for one in proposed(named)["sparse"]] == ["item_id"]
    assert "as many as rows: the number of the row" in propose(survey(foreign_files([named]))).text


@pytest.mark.parametrize("unit", [("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000)])
def test_times_of_two_units_stop_an_import(tmp_path: Path, unit: tuple[str, int]) -> None:
    """A file with seconds beside one with a finer unit: by one of them the others are of 1970."""
    since = 1_700_000_000 + np.arange(ROWS)
    (tmp_path / "t").mkdir()
    plain(tmp_path / "t", ts=since, item_id=since % 50)
    assert "write them in one unit" not in recd("data", "schema", tmp_path / "t")
    table = pq.read_table(tmp_path / "t" / "a.parquet")
    table = table.set_column(1, "ts", pa.array(since * unit[1]))
    pq.write_table(table, tmp_path / "t" / "b.parquet")
    said = recd("data", "import", tmp_path / "t", tmp_path / "out", fails=2)
    assert f"ts: its numbers count {unit[0]}, and some would be of our time in s, as 17" in said


def test_whole_numbers_in_floats_may_be_sessions(tmp_path: Path) -> None:
    """As DuckDB writes its integers of 128 bits."""
    session = np.arange(ROWS) // 4 + 5_000.0
    path = plain(tmp_path, session_id=session, item_id=DRAW.zipf(1.4, ROWS) % 50)
    assert proposed(path)["session_id"] == "session_id"
    path = plain(tmp_path, session_id=session + 0.5, item_id=DRAW.zipf(1.4, ROWS) % 50)
    assert proposed(path)["session_id"] is None


def test_lists_of_a_dictionary_are_lists_of_its_values_in_another_file(tmp_path: Path) -> None:
    tags = pa.array([["a"], None, ["b", None, "a"]] * (ROWS // 3))
    coded = tags.cast(pa.list_(pa.dictionary(pa.int16(), pa.string())))
    for name, column in (("1", coded), ("2", tags), ("3", tags.cast(pa.large_list(pa.string())))):
        (tmp_path / name).mkdir()
        plain(tmp_path / name, tags=column)
    (entry,) = proposed(tmp_path)["sparse"]
    assert (entry["name"], entry["ids"]) == ("tags", "vocabulary")


def test_a_file_without_row_groups_is_one_without_rows(tmp_path: Path) -> None:
    """As DuckDB writes what no row fits; it may be the first of several."""
    (tmp_path / "t").mkdir()
    table = clicks()
    pq.ParquetWriter(tmp_path / "t" / "0.parquet", table.schema).close()
    assert pq.read_metadata(tmp_path / "t" / "0.parquet").num_row_groups == 0
    assert "holds no rows" in recd("data", "schema", tmp_path / "t", fails=2)
    write(tmp_path / "t" / "1.parquet", table)
    file = text(tmp_path / "schema.yaml", recd("data", "schema", tmp_path / "t"))
    assert "no problem" in recd("data", "check", tmp_path / "t" / "1.parquet", "--schema", file)
    said = recd("data", "import", tmp_path / "t", tmp_path / "out", "--schema", file)
    assert f"{table.num_rows} rows" in said


def test_a_table_without_rows_gets_no_registry(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    pq.write_table(clicks().slice(0, 0), tmp_path / "none" / "a.parquet")
    write(tmp_path / "some.parquet", clicks())
    file = text(tmp_path / "schema.yaml", "{session_id: visit, timestamp: null, label: clicked}")
    both = [tmp_path / "none", tmp_path / "some.parquet"]
    for train, test in (both, both[::-1]):
        out = ("--out", tmp_path / "registry.yaml")
        said = recd("init", train, "--test", test, "--schema", file, *out, fails=2)
        assert "none: holds no rows" in said
    assert not (tmp_path / "registry.yaml").exists()


def test_a_file_without_columns_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: has no columns\. Take it out"):
        foreign_files([tmp_path / "a.parquet"])


class Keys(encryption.KmsClient):
    def __init__(self, config: encryption.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("open_footer", [True, False])
def test_encrypted_files_are_named(tmp_path: Path, *, open_footer: bool) -> None:
    """Of a footer that anyone may read, Arrow ends the process that asks for an encrypted chunk."""
    config = encryption.EncryptionConfiguration(
        footer_key="of the footer", column_keys={"mine": ["item"]}, plaintext_footer=open_footer
    )
    table = pa.table({"clicked": [0, 1], "item": [1, 2], "at": [1, 2]})
    keys = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), config
    )
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)
    for read in (lambda: foreign_files([path]), lambda: Table.open(path, SCHEMA)):
        with pytest.raises(DataError, match=r"a\.parquet: .*encrypted, .*without encryption"):
            read()


def test_a_type_that_arrow_does_not_read_is_no_damage(tmp_path: Path) -> None:
    """An integer of 128 bits, as Polars writes it."""
    path = tmp_path / "a.parquet"
    path.write_bytes(zlib.decompress(base64.b64decode(INT128)))
    message = r"column 'i' has a type that Arrow does not read .Integers with more"
    for read in (lambda: foreign_files([path]), lambda: Table.open(path, SCHEMA)):
        with pytest.raises(DataError, match=message):
            read()


def test_streams_of_arrow_and_old_feather_are_named(tmp_path: Path) -> None:
    table = pa.table({"item": [1, 2]})
    with pa.ipc.new_stream(tmp_path / "stream", table.schema) as stream:
        stream.write_table(table)
    (tmp_path / "old").write_bytes(b"FEA1" + bytes(9))
    for name, says in (("stream", "a stream of Arrow's"), ("old", "an Arrow .Feather. file")):
        with pytest.raises(DataError, match=f"{says}. Write it as Parquet"):
            foreign_files([tmp_path / name])


def test_links_to_folders_and_files_below_others_are_told(tmp_path: Path) -> None:
    """An import reads all below a folder, but follows no link; of a folder with files of its own
    training reads these."""
    for name in ("t/a", "t/more/b", "t/_temporary/c", "t/vocabularies/d", "elsewhere/e"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        plain((tmp_path / name).parent, at=np.arange(ROWS))
    table = tmp_path / "t"
    with pytest.warns(NoticeWarning, match=r"and not 1 in its folders, as more/a\.parquet"):
        assert len(found_files(table)) == 1
    assert len(files_of([table])) == 3
    (table / "more" / "linked").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(NoticeWarning, match="is read without more/linked, because links to folders"):
        assert len(files_of([table])) == 3
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "day=1").symlink_to(tmp_path / "elsewhere")
    for find in (lambda path: files_of([path]), found_files):
        with (
            pytest.warns(NoticeWarning, match="is read without day=1"),
            pytest.raises(DataError, match=r"days: (is an empty folder|holds no \.parquet file)"),
        ):
            find(tmp_path / "days")


def test_a_link_that_leads_nowhere_is_named_with_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").symlink_to("gone.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: is a link to gone\.parquet, which is not"):
        files_of([tmp_path])


def test_times_of_int96_are_selected_by(tmp_path: Path) -> None:
    times = pa.array([datetime.datetime(year, 1, 1) for year in (2023, 2024, 9999)])
    table = pa.table({"clicked": [0, 1, 0], "at": times})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    from recd_plugins.data.selection import Selection

    opened = Table.open(tmp_path / "a.parquet", SCHEMA)
    selection = Selection(where="at >= 2024-01-01", schema=opened.schema, source=SCHEMA)
    assert opened.select(selection).num_rows == 2


def test_rows_that_arrow_does_not_read_are_missed(tmp_path: Path) -> None:
    """Of a row group with one row, tiny pages have a first one that is empty, where Arrow ends."""
    table = pa.table({"clicked": [0, 1], "item": [[1, 2], [3]]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=1, data_page_size=1)
    assert pq.ParquetFile(path).read_row_group(1, ["item"]).num_rows == 0
    schema = "session_id: null, timestamp: null, label: clicked"
    file = text(tmp_path / "schema.yaml", f"{{{schema}, sparse: [{{name: item, num_ids: 9}}]}}")
    missed = "a.parquet, row group 0: Arrow reads 0 of 1 row, as of lists"
    assert missed in recd("data", "import", path, tmp_path / "t", "--schema", file, fails=2)
    assert not (tmp_path / "t").exists()
    assert missed in recd("data", "schema", path, fails=2)
    checked = CliRunner().invoke(app, ["data", "check", str(path), "--schema", str(file)])
    assert checked.exit_code == 1
    assert missed in checked.output
    opened = Table.open(path, load_schema(file)).opened(path)
    with pytest.raises(DataError, match="row group 1: Arrow reads 0 of 1 row"):
        list(opened.iter_batches(row_groups=[1], columns=["clicked", "item"]))


def test_a_folder_by_the_name_of_a_file_is_empty_for_nobody_or_for_everybody(
    tmp_path: Path,
) -> None:
    """A write of it failed; with files in it, it is a folder as any other."""
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "x.parquet").mkdir()
    (tmp_path / "x.parquet" / "_SUCCESS").touch()
    for find in (lambda path: files_of([path]), found_files):
        with pytest.raises(DataError, match=r"x\.parquet: is an empty folder by the name"):
            find(tmp_path)
    (tmp_path / "x.parquet").rename(tmp_path / "_x.parquet")
    assert list(files_of([tmp_path])) == list(found_files(tmp_path)) == [tmp_path / "a.parquet"]
    (tmp_path / "a.parquet").rename(tmp_path / "_x.parquet" / "b.parquet")
    (tmp_path / "_x.parquet").rename(tmp_path / "y.parquet")
    assert list(files_of([tmp_path])) == [tmp_path / "y.parquet" / "b.parquet"]
    assert list(found_files(tmp_path / "y.parquet")) == [tmp_path / "y.parquet" / "b.parquet"]
