"""Ladder: the page as a text, then as a browser draws it, then while a run trains."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import Tags, sources_of, stats, write_run
from typer.testing import CliRunner

from recd_plugins.cli.main import app
from recd_plugins.errors import DataError
from recd_plugins.notices import NoticeWarning
from recd_plugins.report import memory
from recd_plugins.report.page import SECTIONS, body, framed, page
from recd_plugins.report.sources import Sources, read_sources
from recd_plugins.report.watch import WAITS, Watched
from recd_plugins.trainer.measure.memory import OWNERS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
LOOKS = """
<script>
function faults() {
  const found = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) found.push("the page is wider than the screen");
  for (const figure of document.querySelectorAll("figure")) {
    const svg = figure.querySelector("svg"), frame = figure.getBoundingClientRect();
    const marks = svg.querySelectorAll("rect, circle, polyline");
    if (!marks.length || !svg.getBoundingClientRect().height) found.push(figure.id + " is empty");
    const words = [...svg.querySelectorAll("text")].map(one => [one, one.getBoundingClientRect()])
      .filter(([_, box]) => box.width);
    for (const [one, box] of words) {
      if (box.left < frame.left || box.right > frame.right)
        found.push(figure.id + " leaves its frame: " + one.textContent);
      for (const [other, place] of words)
        if (one !== other && box.left + 1 < place.right && place.left + 1 < box.right
            && box.top + 4 < place.bottom && place.top + 4 < box.bottom)
          found.push(figure.id + ": " + one.textContent + " | " + other.textContent);
    }
  }
  return found;
}
document.title = JSON.stringify({ figures: document.querySelectorAll("figure").length,
  faults: faults() });
</script>"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    return sources_of(tmp_path_factory.mktemp("page"))


def test_a_page_has_all_figures_and_needs_nothing_beside_itself(sources: Sources) -> None:
    text = page(sources)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.fetched == []
    assert "<script" not in text
    assert "plain &amp; &lt;simple&gt;" in text
    assert "<simple>" not in text
    assert "# &lt;b&gt;" in text
    for at, heading, _ in SECTIONS:
        assert f'<section id="{at}"><h2>{heading}</h2>' in text
    assert len(tags.ids) == len(set(tags.ids))
    assert len(tags.images) == text.count("<figure") == tags.tables - 1  # that of the runs
    assert all(len(words) > 20 for words in tags.images)
    assert len(text) < 500_000
    assert page(sources) == text  # no date, no random ids
    inks = set(re.findall(r"var\(--([a-z-]+)\)", text))
    assert inks <= set(re.findall(r"--([a-z-]+):", text))


def test_a_run_that_still_trains_shows_what_it_has(tmp_path: Path) -> None:
    text = page(read_sources([str(write_run(tmp_path / "run", 1.0, ended=False))]))
    assert "at step 60; still running" in text
    assert '<section id="learned">' in text
    assert '<section id="traffic">' in text
    assert '<section id="forecast">' not in text
    assert "<dd>50</dd><dt>step, ms</dt>" in text
    assert set(memory.OWNERS) == set(OWNERS)


def test_a_label_that_no_sample_of_an_evaluation_has_is_left_out(tmp_path: Path) -> None:
    """As of orders, which the latest day's clicks have not yet."""
    run = write_run(tmp_path / "run", 1.0)
    with (run / "metrics.jsonl").open("a") as file:
        bins = [[0.25, 0.5, 10.0]]
        line = {"kind": "calibration", "step": 60, "labels": {"ordered": [], "click": bins}}
        file.write(json.dumps(line) + "\n")
    text = page(read_sources([str(run)]))
    assert "Calibration of click" in text
    assert "Calibration of ordered" not in text


def test_metrics_of_a_finished_run_that_are_cut_off_bring_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    whole = '{"kind": "train", "step": 5, "loss": 0.5}\n'
    Path("run/metrics.jsonl").write_text(whole + '{"kind": "test", "st')
    assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0  # it may yet be written
    Path("run/summary.json").write_text('{"finished": true}')
    with pytest.warns(NoticeWarning, match=r"run: the last line of its metrics\.jsonl is cut off"):
        assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0
    Path("run/metrics.jsonl").write_text(whole)
    assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0


def test_an_older_run_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 5, "loss": 0.5}\n'
        '{"kind": "cost", "step": 5, "step_ms": 9.0, "data_wait": 0.1, "traffic": {}}\n'
    )
    assert page(read_sources([str(tmp_path)])).count("<figure") == 2


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (
            {"samples_per_session": 3.2},
            r"mine: what measure 'rows' found has 'samples_per_session'.*Use another name",
        ),
        ({"samples_per_session": {"table": None}}, r"mine: what measure 'rows' found has"),
    ],
)
def test_what_a_measure_found_that_is_none_of_sessions_is_named(
    tmp_path: Path, found: object, says: str
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"stats": {"rows": found}}))
    with pytest.raises(DataError, match=says):
        page(read_sources([str(tmp_path / "mine.json")]))


@pytest.mark.parametrize("stats", [None, 3, {"rows": 3}, {"rows": None}])
def test_what_is_no_finding_of_a_measure_is_no_file_to_draw(tmp_path: Path, stats: object) -> None:
    (tmp_path / "mine.json").write_text(json.dumps({"stats": stats}))
    with pytest.raises(DataError, match=r"mine\.json: is neither .*`recd data stats --json`"):
        read_sources([str(tmp_path / "mine.json")])


def test_a_measure_that_is_not_drawn_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside one that is."""
    monkeypatch.chdir(tmp_path)
    found = stats()["stats"] | {"rows": {"count": 90}}
    Path("both.json").write_text(json.dumps({"stats": found}))
    with pytest.warns(NoticeWarning, match="both: measure rows: its results are not drawn"):
        result = CliRunner().invoke(app, ["report", "both.json"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "Samples of a session" in Path("report.html").read_text()


def test_runs_of_one_name_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of two experiments, both in runs/latest: they are called by their paths then."""
    runs = [write_run(tmp_path / name / "latest", scale) for name, scale in (("a", 1.0), ("b", 2))]
    monkeypatch.chdir(tmp_path)

    def called(*named: str) -> list[str]:
        done = CliRunner().invoke(app, ["report", *named, "--json"])
        assert done.exit_code == 0, done.output
        return list(json.loads(done.output)["runs"])

    assert called("a/latest", "b/latest") == ["a/latest", "b/latest"]
    assert called("a/latest", "plain=b/latest") == ["latest", "plain"]
    page_of_both = Path("report.html").read_text()
    assert "plain" in page_of_both
    monkeypatch.chdir(runs[0])
    assert called(".") == ["latest"]
    for twice in ([".", "."], ["one=.", "one=../../b/latest"]):
        with pytest.raises(DataError, match="is the name of 2 of them"):
            read_sources(twice)


@pytest.mark.parametrize("name", ["summary.json", "plan.json", "metrics.jsonl"])
def test_a_file_of_a_run_that_is_cut_off_is_named(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1.0)
    (run / name).write_text('{"kind": \n')
    with pytest.raises(DataError, match=rf"a file of the run is damaged: .*{name} is not JSON"):
        read_sources([str(run)])


def test_a_damaged_file_of_a_run_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1.0)
    (run / "summary.json").write_text("null")
    with pytest.raises(DataError, match=r"a file of the run is damaged: summary\.json holds no"):
        read_sources([str(run)])


def test_a_file_of_a_run_names_its_folder_and_a_cut_one_what_it_lacks(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / name).write_text('{"kind": "train", "step": 5, "loss": 0.5}\n')
        with pytest.raises(DataError, match=r"is a file of a run\. Name the run's folder, /"):
            read_sources([str(tmp_path / name)])
    cut = tmp_path / "elsewhere" / "advice.json"
    cut.parent.mkdir()
    cut.write_text('{"baseline": ')
    with pytest.raises(DataError, match=r"no whole JSON .*Expecting value"):
        read_sources([str(cut)])


def test_a_file_that_no_command_printed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text in ('{"a": 1}', "{", "[1]"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"other\.json: is neither .*`recd plan --json`"):
            read_sources([str(file)])


@pytest.mark.parametrize("line", [b"3", b'{"kind": "train"}', b'{"step": 1}', b"\xff"])
def test_a_line_that_is_none_of_metrics_is_named(tmp_path: Path, line: bytes) -> None:
    run = write_run(tmp_path / "run", 1.0)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(DataError, match=r"run: a file of the run is damaged: .*leave the run out"):
        read_sources([str(run)])


@pytest.mark.parametrize("beside", [[], ["whole"]])
def test_what_cannot_be_drawn_of_a_source_is_said_and_nothing_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: list[str]
) -> None:
    """As of a run of another version."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "whole", 1.0)
    run = write_run(tmp_path / "other", 1.0)
    (run / "summary.json").write_text(json.dumps({"cost": {"reading_ms": ["decode"]}}))
    Path("report.html").write_text("before")
    told = CliRunner().invoke(app, ["report", *beside, "other", "--figure", "curves.png"])
    assert told.exit_code == 2, told.output
    assert told.stderr.startswith("error: other: holds what cannot be drawn (ValueError: ")
    assert Path("report.html").read_text() == "before"
    assert not Path("curves.png").exists()


def test_what_was_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figure beside the page too."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "one", 1.0)
    asked = ["report", "one", "--out", "page.html", "--figure", "curves.png"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0, told.output
    assert told.stdout.splitlines()[-2:] == ["page.html", "curves.png"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert (found["page"], found["figure"]) == ("page.html", "curves.png")
    assert json.loads(CliRunner().invoke(app, [*asked[:4], "--json"]).stdout)["figure"] is None


def drawn(address: str, width: int, folder: Path) -> tuple[str, str]:
    """The page as a browser has it in the end, and what its console says."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *(f"--user-data-dir={folder}", f"--window-size={width},900"),
            *("--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"),
            address,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout, "\n".join(one for one in done.stderr.splitlines() if "CONSOLE" in one)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium")
def test_a_browser_draws_every_figure_and_no_word_over_another(
    sources: Sources, tmp_path: Path
) -> None:
    text = framed(sources.title, body(sources), script=LOOKS)
    (tmp_path / "page.html").write_text(text)
    for width in (390, 1200):
        found, console = drawn(f"file://{tmp_path}/page.html", width, tmp_path / "profile")
        assert console == ""
        title = re.search(r"<title>(.*?)</title>", found)
        assert title is not None
        seen = json.loads(title[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))
        assert seen == {"figures": text.count("<figure"), "faults": []}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched([f"now={write_run(tmp_path / 'run', 1.0, ended=False)}"])
    yield found
    found.close()


def test_a_watched_page_is_drawn_anew_as_the_run_goes_on(watched: Watched, tmp_path: Path) -> None:
    def get(path: str, **headers: str) -> tuple[str, str]:
        request = urllib.request.Request(watched.address + path, headers=headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode(), answer.headers["ETag"]

    text, tag = get("/figures")
    assert "at step 60; still running" in text
    for headers, code in (({"If-None-Match": tag}, 304), ({"Host": "elsewhere.example"}, 403)):
        with pytest.raises(urllib.error.HTTPError, match=str(code)) as error:
            get("/figures", **headers)
        error.value.close()
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 999, "loss": 0.1}\n')
    later, other = get("/figures", **{"If-None-Match": tag})
    assert other != tag
    assert "<td>999</td>" in later
    assert "setInterval(look" in get("/")[0]


def test_a_watched_page_waits_for_a_run_that_has_just_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    watched = Watched([f"now={folder}"])
    try:
        assert watched.waiting() == [str(folder)]
        assert WAITS in watched.page()
        write_run(folder, 1.0, ended=False)
        assert watched.waiting() == []
        assert "at step 60; still running" in watched.figures()
    finally:
        watched.close()


def test_ctrl_c_ends_a_watched_page_as_it_ends_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def wait(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("recd_plugins.cli.watch.threading", SimpleNamespace(Event=Interrupted))
    write_run(tmp_path / "run", 1.0, ended=False)
    ended = CliRunner().invoke(app, ["watch", str(tmp_path / "run"), "--json"])
    assert ended.exit_code == 130
    address = json.loads(ended.stdout)["page"]
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(address, timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium")
def test_a_browser_watches(watched: Watched, tmp_path: Path) -> None:
    found, console = drawn(watched.address, 1200, tmp_path / "profile")
    assert console == ""
    assert "Live: read at" in found
    assert found.count("<figure") >= 8
