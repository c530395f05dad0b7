"""Value tests: what a registry says, the line of each thing it says, and overrides of it."""

from __future__ import annotations

import os
from collections import UserDict, UserList
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recd_plugins.config import yaml_text
from recd_plugins.errors import RegistryError
from recd_plugins.registry.source import Source

TEXT = """\
# a comment
plugins: [a,
  b]
model:
  use: dlrm

  layers:
    - 8
    - width: 4
preprocess:
- {use: first_x,
   n: 3}
- use: hash
base: &base {x: 1}
derived: {<<: *base, y: 2}
"""


def read(tmp_path: Path, text: str, *overrides: str) -> Source:
    file = tmp_path / "registry.yaml"
    file.write_text(text)
    return Source.read(file, overrides)


def overridden(values: dict[str, Any], *overrides: str) -> dict[str, Any]:
    return Source.read(values, overrides).values


def test_values_and_the_line_of_each(tmp_path: Path) -> None:
    source = read(tmp_path, TEXT)
    assert source.values["model"] == {"use": "dlrm", "layers": [8, {"width": 4}]}
    assert source.values["derived"] == {"x": 1, "y": 2}
    assert source.lines == {
        "plugins": 2,
        "plugins[0]": 2,
        "plugins[1]": 3,
        "model": 4,
        "model.use": 5,
        "model.layers": 7,
        "model.layers[0]": 8,
        "model.layers[1]": 9,
        "model.layers[1].width": 9,
        "preprocess": 10,
        "preprocess[0]": 11,
        "preprocess[0].use": 11,
        "preprocess[0].n": 12,
        "preprocess[1]": 13,
        "preprocess[1].use": 13,
        "base": 14,
        "base.x": 14,
        "derived": 15,
        "derived.<<": 15,
        "derived.<<.x": 14,
        "derived.y": 15,
    }
    assert source.base == tmp_path


@pytest.mark.parametrize(
    ("where", "located"),
    [
        ("model.use", ":5: model.use"),
        ("model.layers[1].width", ":9: model.layers[1].width"),
        ("model.layers[1].depth", ":9: model.layers[1].depth"),  # the nearest that has a line
        ("model.layers[2]", ":7: model.layers[2]"),
        ("model.absent.deeper", ":4: model.absent.deeper"),
        ("derived.x", ":15: derived.x"),
        ("absent", ": absent"),
        ("", ""),
    ],
)
def test_a_place_is_located_by_its_line_or_what_holds_it(
    where: str, located: str, tmp_path: Path
) -> None:
    assert read(tmp_path, TEXT).locate(where) == f"{tmp_path / 'registry.yaml'}{located}"


def test_a_place_that_an_override_set_is_located_there(tmp_path: Path) -> None:
    source = read(
        tmp_path, TEXT, "model.use=x", "preprocess.0={use: y}", "new.deep.er=1", "model.use=z"
    )
    assert source.locate("model.use") == "override 'model.use=z': model.use"  # the last counts
    assert source.locate("model.layers").endswith(":7: model.layers")
    assert source.locate("model").endswith(":4: model")
    assert source.locate("model.used").endswith(":4: model.used")
    assert source.locate("preprocess[0].n") == "override 'preprocess.0={use: y}': preprocess[0].n"
    assert source.locate("preprocess[1]").endswith(":13: preprocess[1]")
    assert source.locate("new") == "override 'new.deep.er=1': new"
    assert source.locate("new.deep") == "override 'new.deep.er=1': new.deep"
    assert source.locate("").endswith("registry.yaml")


def test_a_mapping_of_a_program_has_the_types_of_yaml() -> None:
    values: dict[str, Any] = {
        "plugins": UserList(["a"]),  # neither this list nor the mapping below is Python's own
        "train": UserDict({"batch_size": np.int64(8), "lr": np.float32(0.5), "resume": True}),
        "dataset": {"num_ids": (9, 9)},
        "folder": Path("runs"),
    }
    read = Source.read(values, ["train.batch_size=16"]).values
    assert read == {
        "plugins": ["a"],
        "train": {"batch_size": 16, "lr": 0.5, "resume": True},
        "dataset": {"num_ids": [9, 9]},
        "folder": "runs",
    }
    train = read["train"]
    assert [type(one) for one in (read["plugins"], train, train["lr"], train["resume"])] == [
        list,
        dict,
        float,
        bool,
    ]
    assert values["train"]["batch_size"] == 8


def test_a_mapping_has_no_lines_and_is_left_as_it_was() -> None:
    given = {"model": {"use": "dlrm", "layers": [1]}, "etl": [{"use": "a"}]}
    source = Source.read(given, ["model.layers.0=2", "etl.0.x=1"])
    assert source.values == {
        "model": {"use": "dlrm", "layers": [2]},
        "etl": [{"use": "a", "x": 1}],
    }
    assert given == {"model": {"use": "dlrm", "layers": [1]}, "etl": [{"use": "a"}]}
    assert source.locate("model.use") == "model.use"
    assert source.locate("model.layers[0]") == "override 'model.layers.0=2': model.layers[0]"
    assert source.base == Path()


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
"""Nine lines that stand for some billion values."""


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "---\n"])
def test_an_empty_registry_says_nothing(text: str, tmp_path: Path) -> None:
    source = read(tmp_path, text, "train.steps=1")
    assert source.values == {"train": {"steps": 1}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: 2\n", ":2: not valid YAML: expected ',' or ']'"),
        ("a: 1\n\tb: 2\n", ":2: not valid YAML"),
        ("a: 1\nb: !!python/name:os.system x\n", ":2: !!python/name:os.system is not accepted"),
        (
            "a: 1\n---\nb: 1\n",
            ":2: not valid YAML: but found another document. Keep one document: take out that line",
        ),
        ("a: !made {}\n", ":1: !made is not accepted here"),
        ("b: 1\na: \x00\n", ":2: not valid YAML: it takes no U+0000. Take it out, or save"),
        ('b: 1\na: "\\U00110000"\n', ":2: not valid YAML: chr() arg not in range"),
        ("a: {1: 2,\n  0x1: 3}\n", ":2: '0x1' stands twice in one mapping; keep one"),
        ("a: 1\nb: !!timestamp x\n", ":2: !!timestamp is not accepted here"),
        ("a: !!set {a, b}\n", ":1: !!set is not accepted here"),
        ("a: !!int ''\n", ":1: '' is no !!int."),
        ("a: !!float x\n", ":1: 'x' is no !!float."),
        ("a: 1\nb: {c: 1,\n  c: 2}\n", ":3: 'c' stands twice in one mapping; keep one"),
        ("a: &a\n  - *a\n", ":1: this value holds an alias of itself"),
        ("a: &a {b: {c: *a}}\n", ":1: this value holds an alias of itself"),
        (BOMB, ": holds more than 100,000 values once its aliases are replaced"),
        ("a: " + "[" * 3000 + "]" * 3000, ":1: values are nested more than 100 deep"),
        ("? [a, b]\n: 1\n", ":1: a key must be a name, not a list or a"),
        ("a: " + "9" * 5000 + "\n", ":1: an integer of 5,000 digits is larger than any"),
        ("a: 0x" + "f" * 5000 + "\n", ":1: an integer of 5,002 digits is larger than any"),
        ("just words\n", ": must hold a mapping of slots, as `model: {use: dlrm}`"),
    ],
)
def test_what_is_no_registry_is_refused_by_its_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(RegistryError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'registry.yaml'}{says}")


def test_names_that_look_like_truth_values_stay_names(tmp_path: Path) -> None:
    source = read(tmp_path, "pooling: {on: 1, true: 2,\n  no: no, ~: 4, 5: 6}\n")
    assert source.values == {"pooling": {"on": 1, "true": 2, "no": False, "~": 4, 5: 6}}
    assert source.locate("pooling.no").endswith("registry.yaml:2: pooling.no")


def test_too_many_values_are_refused_before_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_text, "MOST", 10)
    assert read(tmp_path, f"a: [{'1, ' * 9}]").values == {"a": [1] * 9}
    with pytest.raises(RegistryError, match="holds more than 10 values, which is too much for a"):
        read(tmp_path, f"a: [{'1, ' * 20}")  # the end is missing


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"none.yaml: there is no such registry"):
        Source.read(tmp_path / "none.yaml", ())
    with pytest.raises(RegistryError, match="is a folder, not a file"):
        Source.read(tmp_path, ())
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("b: 1\na: é\n".encode("latin-1"))
    with pytest.raises(RegistryError, match=r"latin.yaml:2: is not UTF-8: .* Save it as UTF-8."):
        Source.read(latin, ())


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=3", 3),
        ("a.b=1e3", 1000.0),  # as YAML 1.2 has it
        ("a.b=x=y", "x=y"),
        ("a.b=[1, {c: d}]", [1, {"c": "d"}]),
        ("a.b=null", None),
        ("a.b=", None),
        ("a.b='3'", "3"),
        ("a.b=true", True),
    ],
)
def test_an_override_is_a_value_of_yaml(override: str, value: object) -> None:
    assert overridden({"a": {"c": 0}}, override) == {"a": {"c": 0, "b": value}}


def test_overrides_open_what_is_not_there() -> None:
    assert overridden({}, "a.b.c=1", "a.b.d=2") == {"a": {"b": {"c": 1, "d": 2}}}
    assert overridden({"a": None}, "a.b=1") == {"a": {"b": 1}}


def test_a_short_slot_is_opened_as_its_use() -> None:
    short = {"sharding": "torchrec"}
    assert overridden(short, "sharding.search=greedy") == {
        "sharding": {"use": "torchrec", "search": "greedy"}
    }
    assert overridden(short, "sharding.use=flexshard") == {"sharding": {"use": "flexshard"}}
    assert overridden(short, "sharding=flexshard") == {"sharding": "flexshard"}


CHOSEN = {"dataset": {"use": "sessions", "samples": 64, "seed": 1}}


def test_another_record_drops_the_options_of_the_one_before() -> None:
    assert overridden(CHOSEN, "dataset.use=random") == {"dataset": {"use": "random"}}
    nested = {"pooling": {"history": {"use": "attention", "hidden": [8]}, "other": {"use": "sum"}}}
    assert overridden(nested, "pooling.history.use=mean") == {
        "pooling": {"history": {"use": "mean"}, "other": {"use": "sum"}}
    }


def test_the_same_record_keeps_its_options() -> None:
    assert overridden(CHOSEN, "dataset.use=sessions", "dataset.seed=2") == {
        "dataset": {"use": "sessions", "samples": 64, "seed": 2}
    }


@pytest.mark.parametrize(
    "overrides",
    [
        ("dataset.use=random", "dataset.samples=8", "dataset.mix.a=1"),
        ("dataset.samples=8", "dataset.mix.a=1", "dataset.use=random"),
        ("dataset.samples=8", "dataset.use=random", "dataset.mix.a=1"),
    ],
)
def test_what_other_overrides_say_of_the_new_record_stays(overrides: tuple[str, ...]) -> None:
    assert overridden(CHOSEN, *overrides) == {
        "dataset": {"use": "random", "samples": 8, "mix": {"a": 1}}
    }


def test_another_transform_is_for_the_same_features() -> None:
    steps = {"preprocess": [{"use": "first_x", "n": 3, "features": "user_*"}, {"use": "clamp"}]}
    assert overridden(steps, "preprocess.0.use=hash") == {
        "preprocess": [{"use": "hash", "features": "user_*"}, {"use": "clamp"}]
    }


def test_positions_in_lists() -> None:
    values = {"etl": [{"use": "a", "x": 1}, "b", None], "sizes": [1, 2]}
    assert overridden(
        values, "etl.0.x=2", "etl.1.y=3", "etl.2.use=c", "sizes.1=5", "etl.0.use=a"
    ) == {
        "etl": [{"use": "a", "x": 2}, {"use": "b", "y": 3}, {"use": "c"}],
        "sizes": [1, 5],
    }


def test_an_override_may_have_the_place_that_a_message_has(tmp_path: Path) -> None:
    values = {"etl": [{"use": "a", "x": 1}, {"use": "b"}]}
    assert overridden(values, "etl[1].y=3", "etl[0].use=c") == {
        "etl": [{"use": "c"}, {"use": "b", "y": 3}]
    }
    source = read(tmp_path, "etl: [{use: a}]\n", "etl[0].x=1")
    assert source.locate("etl[0].x") == "override 'etl[0].x=1': etl[0].x"


def test_scalars_are_what_they_look_like(tmp_path: Path) -> None:
    text = "{d: 2024-01-01, t: 1:30, z: 010, e: 1e-3, i: -1_000, x: 0x1F, f: 1.5, n: ~, b: no}"
    assert read(tmp_path, text).values == {
        "d": "2024-01-01",
        "t": "1:30",
        "z": "010",
        "e": 0.001,
        "i": -1000,
        "x": 31,
        "f": 1.5,
        "n": None,
        "b": False,
    }


def test_what_is_no_file_of_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for path, says in (
        (tmp_path / "fifo", "is a pipe, not a file"),
        (tmp_path / "loop", "is a link that leads to itself, not a file"),
        (Path("/dev/zero"), "is a device, not a file"),
        (tmp_path / ("n" * 300), "cannot be read"),
    ):
        with pytest.raises(RegistryError, match=says):
            Source.read(path, ())


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train", "write key=value, as train.batch_size=512."),
        ("=1", "write key=value"),
        (".on=1", "write key=value"),
        ("on..x=1", "write key=value"),
        ("a=[1", "its value: not valid YAML: expected ',' or ']'"),
        (
            "sizes.\N{SUPERSCRIPT TWO}=1",
            "sizes is a list of 2, in which '\N{SUPERSCRIPT TWO}' is not a position",
        ),
        ("sizes.2=1", "sizes is a list of 2, in which '2' is not a position; count from 0."),
        ("sizes.-1=1", "sizes is a list of 2, in which '-1' is not a position"),
        ("sizes.x=1", "sizes is a list of 2, in which 'x' is not a position"),
        ("sizes.0.x=1", "sizes.0 is 1, which holds no options. Write `sizes.0=VALUE` to set it."),
        ("on.x.y=1", "on is True, which holds no options. Write `on=VALUE` to set it."),
    ],
)
def test_an_override_that_leads_nowhere_is_named(override: str, says: str) -> None:
    with pytest.raises(RegistryError) as caught:
        overridden({"sizes": [1, 2], "on": True}, override)
    assert str(caught.value).startswith(f"override {override!r}: {says}")


def test_keys_with_nothing_behind_them_are_known_at_any_depth(tmp_path: Path) -> None:
    written = 'model: {use: a, b: , c: "", d: ~}\ntrain:\n  e:\n    f: # 3\n    g: 3\nh: [{i: }]\n'
    assert read(tmp_path, written).empty == ("model.b", "train.e.f", "h[0].i")
    changes = ["model.use=other", "h.0.i.j=1", "train.e={}"]
    assert read(tmp_path, written, *changes).empty == ()


def test_what_an_override_drops_of_a_mapping_is_known_unless_a_later_one_says_it() -> None:
    values = {"a": {"b": 1, "c": {"d": 2, "e": 3}}, "m": {"use": "x", "y": 1}, "l": [{"n": 1}]}

    def dropped(*overrides: str) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
        found = Source.read(values, overrides).rewritten
        return [(one.override, one.dropped, one.instead) for one in found]

    assert dropped("a={c: {d: 4}}") == [("a={c: {d: 4}}", ("a.b", "a.c.e"), ("a.c.d=4",))]
    assert dropped("a.f=1", "a={b: 1, c: {}}") == [
        ("a={b: 1, c: {}}", ("a.c.d", "a.c.e", "a.f"), ())
    ]
    assert dropped("l.0={o: 2}") == [("l.0={o: 2}", ("l.0.n",), ("l.0.o=2",))]
    assert dropped("a={b: 1}", "a.c={d: 0}", "a.c.e=1") == []
    assert dropped("a={b: 1}", "a={b: 1, c: null}") == []
    assert dropped("m={use: z}", "a={b: 1, c: {d: 1, e: 1}}", "l=[]", "m.use=q", "new={k: 1}") == []
    assert dropped("m={use: x}", "a=null") == [("m={use: x}", ("m.y",), ())]


def test_an_override_with_nothing_behind_it_is_known_unless_a_later_one_says_it(
    tmp_path: Path,
) -> None:
    """As where the shell knows no such variable: `cache=$CACHE`."""
    written = ("cache=", "etl= # later", "topology={use: local, op_us: }", "h=[{i: }]", "log=null")
    source = read(tmp_path, "model: {b: }\n", *written)
    assert source.empty == ("model.b", "cache", "etl", "topology.op_us", "h[0].i")
    later = read(tmp_path, "model: {b: }\n", *written, "cache=a", "topology.op_us=1", "h=[]")
    assert later.empty == ("model.b", "etl")
    assert source.place_of_empty("cache")[0] == "override 'cache='"
    assert source.place_of_empty("model.b")[0] == f"{tmp_path / 'registry.yaml'}:1"
