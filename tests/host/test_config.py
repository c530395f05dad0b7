"""Value tests: mappings become configs, or an error that says what, where and how to fix."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from recd_plugins.config import Config, Range, parse, path_of
from recd_plugins.config.option_types import wrong_with_options
from recd_plugins.describe import describe, field_docs, options_of, type_hints
from recd_plugins.errors import RegistryError
from recd_plugins.registry.choice import _unshared


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    """A nested config."""

    width: Annotated[int, Range(ge=1)]
    """How wide."""


@dataclass(frozen=True, kw_only=True)
class Options(Config):
    """Every kind of field."""

    rate: Annotated[float, Range(gt=0, le=1)] = 0.5
    """A rate."""
    scale: float | None = None
    """A scale, of any sign."""
    least: Annotated[float, Range(ge=0)] = 0.0
    """A number without a largest one."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Numbers by name."""
    sizes: tuple[Annotated[int, Range(ge=1)], ...] = ()
    """Some
    sizes."""
    mode: Literal["fast", "exact"] = "fast"
    """A mode."""
    name: str | None = None
    """A name."""
    on: bool = True
    """A switch."""
    path: Path = Path()
    """A path."""
    inner: Inner | None = None
    """A nested one."""
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    """Nested ones by name."""
    anything: Any = None
    by_number: Mapping[int, str] = field(default_factory=dict)
    """Texts by number."""
    betas: tuple[Annotated[float, Range(lt=1)], float] = (0.9, 0.99)
    """Two numbers."""
    named: tuple[int, str] = (1, "a")
    """A number and a text."""
    some: tuple = ()  # type: ignore[type-arg]  # as authors write it
    """Anything."""
    counts: dict[str, Annotated[int, Range(ge=1)]] = field(default_factory=dict)
    """Counts by name."""
    level: Literal[1, 2] = 1
    """A level."""
    groups: tuple[tuple[str, ...], ...] | Literal["auto"] = "auto"
    """Names, or a word."""
    made: int = field(default=3, init=False)


def test_every_kind_of_value_is_taken() -> None:
    options = parse(
        Options,
        {
            "rate": "1e-3",  # YAML reads it as text
            "sizes": [1, 2],
            "mode": "exact",
            "name": "a",
            "on": False,
            "path": "x/y",
            "inner": {"width": 2},
            "by_name": {"a": {"width": 3}},
            "anything": [1],
            "betas": [0.5, 2],
            "named": [2, "b"],
            "some": [1, "a"],
            "level": 2,
        },
        "model",
    )
    assert options == Options(
        rate=0.001,
        sizes=(1, 2),
        mode="exact",
        name="a",
        on=False,
        path=Path("x/y"),
        inner=Inner(width=2),
        by_name={"a": Inner(width=3)},
        anything=[1],
        betas=(0.5, 2.0),
        named=(2, "b"),
        some=(1, "a"),
        level=2,
    )


@pytest.mark.parametrize(
    ("given", "where", "says"),
    [
        ({"ratee": 1}, "model.ratee", "unknown option 'ratee'; did you mean 'rate'?"),
        ({"rate": 0}, "model.rate", "must be > 0 and <= 1, but is 0.0"),
        ({"rate": "fast"}, "model.rate", "expected a number, got 'fast' (str)"),
        ({"rate": True}, "model.rate", "got True (bool)"),
        ({"rate": float("nan")}, "model.rate", "must be > 0 and <= 1, but is nan"),
        ({"scale": ".nan"}, "model.scale", "expected a number, got '.nan' (str)"),
        ({"scale": float("nan")}, "model.scale", "must be a finite number, but is nan"),
        ({"scale": "-inf"}, "model.scale", "must be a finite number, but is -inf"),
        ({"least": float("inf")}, "model.least", "must be a finite number, but is inf"),
        ({"weights": {"a": float("inf")}}, "model.weights.a", "must be a finite number"),
        ({"sizes": [1, "2"]}, "model.sizes[1]", "expected an integer, got '2' (str)"),
        ({"sizes": 1}, "model.sizes", "expected a list of (an integer >= 1), got 1 (int)"),
        ({"mode": "fats"}, "model.mode", "unknown value 'fats'; did you mean 'fast'?"),
        ({"level": 10**5000}, "model.level", "; Known: 1, 2."),
        ({"level": True}, "model.level", "unknown value True; Known: 1, 2."),
        ({"betas": [0.5]}, "model.betas", "expected a list of (a number < 1, a number), got [0.5]"),
        ({"betas": [1, 2]}, "model.betas[0]", "must be < 1, but is 1.0"),
        ({"named": ["b", 2]}, "model.named[0]", "expected an integer, got 'b' (str)"),
        ({"counts": {"a": 0}}, "model.counts.a", "must be >= 1, but is 0"),
        (
            {"groups": [[0, "a"], [1801]]},
            "model.groups",
            "got [[0, 'a'], [1801]] (list). Write names that are numbers in quotes: [['0', 'a'], "
            "['1801']].",
        ),
        ({"groups": [[0.5]]}, "model.groups", "or auto, got [[0.5]] (list)."),
        ({"groups": [10**5000]}, "model.groups", "or auto, got "),
        ({"made": 4}, "model.made", "unknown option 'made'"),
        ({"name": 3}, "model.name", "expected a text, got 3 (int). Write it in quotes: '3'."),
        ({"on": 1}, "model.on", "expected true or false, got 1 (int)"),
        ({"inner": {"width": 0}}, "model.inner.width", "must be >= 1, but is 0"),
        ({"inner": {}}, "model.inner", "option 'width' is required. How wide."),
        ({"by_name": {"a": 1}}, "model.by_name.a", "expected a mapping, got 1 (int)"),
        (
            {"rate": None},
            "model.rate",
            "got nothing. Write it, or take 'rate' out: by default it is",
        ),
        ({"path": None}, "model.path", "take 'path' out: by default it is '.'."),
        ({"rate": 10**400}, "model.rate", "expected a number, got 1000"),
        ({"rate": 16**5000}, "model.rate", "got a value of type int that is too large to show"),
        ({"sizes": [2**64]}, "model.sizes[0]", "must be an integer of 64 bits, but is 1844674"),
        ({"name": ["x" * 5000]}, "model.name", "xxx...xxx"),
        ({"path": "a\0b"}, "model.path", "a path cannot contain a NUL"),
        ({"path": " "}, "model.path", "is empty, but must be a path."),
        ({"path": "a/$RUN/x"}, "model.path", "'a/$RUN/x' contains $RUN, but variables are not"),
        ({"width": 1}, "model.width", "did you mean 'model.inner.width'? Known: "),
        ({"path": "~nosuchuser/x"}, "model.path", "the home of a user who is not known here"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], where: str, says: str) -> None:
    with pytest.raises(RegistryError) as caught:
        parse(Options, given, "model")
    assert caught.value.where == where
    assert says in caught.value.message
    assert len(caught.value.message) < 400


def test_bounds_hold_on_construction_too() -> None:
    with pytest.raises(RegistryError, match="rate: must be > 0 and <= 1, but is 2"):
        Options(rate=2)
    with pytest.raises(RegistryError, match=r"sizes\[1\]: must be >= 1, but is 0"):
        Options(sizes=(1, 0))


@dataclass(frozen=True, kw_only=True)
class Odd(Config):
    """Options with a check of their own, which leaves out that of the bounds."""

    size: Annotated[int, Range(ge=1)] = 1

    def __post_init__(self) -> None:
        if self.size % 2 == 0:
            raise ValueError("size must be odd.")


def test_what_a_config_checks_itself_is_named_and_bounds_hold_beside_it() -> None:
    with pytest.raises(RegistryError, match=r"^model\.size: must be >= 1, but is -1\.$"):
        parse(Odd, {"size": -1}, "model")
    with pytest.raises(RegistryError) as caught:
        parse(Odd, {"size": 2}, "model")
    assert str(caught.value).startswith(
        "model: these options are refused by Odd, which raised ValueError: size must be odd. Run"
    )


@dataclass(frozen=True, kw_only=True)
class Computes(Config):
    """An option, and what is computed of it when it is asked for."""

    size: int = 1
    table: list[int] = field(init=False)


def test_what_a_config_computes_is_no_option() -> None:
    assert parse(Computes, {"size": 2}, "model").size == 2
    assert _unshared(parse(Computes, {}, "model")).size == 1
    with pytest.raises(RegistryError, match=r"model\.table: unknown option 'table'"):
        parse(Computes, {"table": []}, "model")


def test_options_of_a_class_without_source_have_no_text() -> None:
    made = make_dataclass("Made", [("size", int)], bases=(Config,), frozen=True, kw_only=True)
    assert field_docs(made) == {}
    with pytest.raises(RegistryError, match=r"model: option 'size' is required\.$"):
        parse(made, {}, "model")


def test_each_field_is_documented_by_the_text_under_it() -> None:
    docs = field_docs(Options)
    assert docs["rate"] == "A rate."
    assert docs["sizes"] == "Some\nsizes."
    assert "anything" not in docs


def test_types_read_as_words() -> None:
    words = {name: describe(hint) for name, hint in type_hints(Options).items()}
    assert words["rate"] == "a number > 0 and <= 1"
    assert words["mode"] == "fast | exact"
    assert words["name"] == "a text or nothing"
    assert words["by_name"] == "a mapping to (a mapping)"
    assert words["named"] == "a list of (an integer, a text)"
    assert words["some"] == "a list"
    assert "made" not in words


def test_names_of_typing_without_parts_are_their_classes() -> None:
    of = vars(typing)  # as authors write them
    fields = {
        "names": of["Dict"],
        "sizes": of["List"] | None,
        "pairs": of["Tuple"][of["Mapping"], ...],
        "some": of["Tuple"],
        "none": of["Tuple"][()],
    }
    Bare: Any = make_dataclass("Bare", fields.items(), bases=(Config,), frozen=True, kw_only=True)
    given = {"names": {"a": 1}, "sizes": [1], "pairs": [{"b": 2}], "some": [1, "c"], "none": []}
    made = Bare(names={"a": 1}, sizes=[1], pairs=({"b": 2},), some=(1, "c"), none=())
    assert wrong_with_options(Bare) == ""
    assert parse(Bare, given, "here") == made
    assert [one.takes for one in options_of(Bare)] == [
        "a mapping",
        "a list or nothing",
        "a list of (a mapping)",
        "a list",
        "a list of ()",
    ]
    with pytest.raises(RegistryError, match=r"here\.names: expected a mapping, got \[1\]"):
        parse(Bare, {"names": [1]}, "here")


def test_keys_that_are_numbers_may_be_texts_of_them_as_json_has_them() -> None:
    options = parse(Options, {"by_number": {"7": "a", -3: "b", "0": "c"}}, "o")
    assert options.by_number == {7: "a", -3: "b", 0: "c"}
    for key in ("07", "1.0", "x", "", "-0"):
        with pytest.raises(RegistryError, match="expected an integer"):
            parse(Options, {"by_number": {key: "a"}}, "o")
    with pytest.raises(RegistryError, match=r"o\.by_number: has a key twice"):
        parse(Options, {"by_number": {"7": "a", 7: "b"}}, "o")


def test_a_path_may_have_the_sign_of_a_variable_where_no_shell_would_see_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "$own").mkdir()
    for written in ("a$b/c", "$1", "cost$", "$own"):
        assert path_of(written, "folder") == Path(written)


def test_a_number_that_equals_a_choice_is_that_choice() -> None:
    made = parse(Options, {"rate": 0.5, "level": 2.0}, "model")
    assert (made.level, type(made.level)) == (2, int)
