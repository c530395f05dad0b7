"""Property test: a registry with a mistake in it is refused by one message with its file, or it is
none; what is misspelt is never passed over."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from drawn import at_most

from recd_plugins.errors import RecdError
from recd_plugins.registry import Registry

ROOT = Path(__file__).parents[2]
RIGHT = [
    yaml.safe_load(path.read_text())
    for path in (ROOT / "registry.yaml", *sorted(ROOT.glob("examples/*.yaml")))
]
POISON: tuple[Any, ...] = (
    *("abc", "", None, True, -1, 0, 3, 0.5, float("nan"), float("inf"), 10**30, 2**63, 1e300),
    *([], {}, [1], ["abc"], {"a": 1}, {"use": "abc"}, [None], "ä☃", "*", "[", "1e3", "010", "~"),
    *("x" * 5_000, "..", "s3://nobucket/x", "a:b", "a\0b", {"use": None}, [{"use": None}]),
)
ODD = (
    "\t",
    "- ",
    "  ",
    ": ",
    "'",
    "{",
    "&a ",
    "*a ",
    "!!python/object:os.system ",
    "---\n",
    "\x07",
)
Place = tuple[Any, ...]


def paths(value: Any, at: Place = ()) -> Iterator[Place]:
    """The places of all values."""
    yield at
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from paths(value[key], (*at, key))


def misspelt(draw: random.Random, key: str) -> str:
    place = draw.randrange(len(key))
    return draw.choice([key[:place] + key[place + 1 :], f"{key}s", key.upper(), f"{key} "])


def drawn(draw: random.Random) -> tuple[str, str]:
    """A registry with a mistake, and the key that it must be refused for, if there is one."""
    values, wrong = copy.deepcopy(draw.choice(RIGHT)), ""
    at = draw.choice([one for one in paths(values) if one])
    holder = values
    for key in at[:-1]:
        holder = holder[key]
    if draw.random() < 0.5 or not isinstance(at[-1], str) or at[:-1] == ("pooling",):
        holder[at[-1]] = draw.choice(POISON)
    elif (wrong := misspelt(draw, at[-1])) not in holder:
        holder[wrong] = holder.pop(at[-1])
    else:
        wrong = ""
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if not wrong and draw.random() < 0.3:
        lines = text.splitlines()
        line = draw.randrange(len(lines))
        place = draw.randrange(len(lines[line]) + 1)
        lines[line] = lines[line][:place] + draw.choice(ODD) + lines[line][place:]
        text = "\n".join(lines)
    return text, wrong


@pytest.mark.parametrize("seed", range(3))
def test_a_mistake_is_told_in_one_message_or_is_none(seed: int, tmp_path: Path) -> None:
    draw, file = random.Random(seed), tmp_path / "registry.yaml"
    refused = 0
    for _ in range(at_most(120)):
        text, wrong = drawn(draw)
        file.write_text(text)
        try:
            Registry.load(file)
        except RecdError as error:
            said, refused = str(error), refused + 1
            assert said.startswith(f"{file}"), text
            assert said.count(f"{file}") == 1, text
            assert len(said) < 2_000, text
            assert wrong.strip() in said, text
        else:
            assert not wrong, f"{wrong!r} was passed over in\n{text}"
    assert refused > 4
