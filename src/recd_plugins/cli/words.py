"""The meaning of a word from the glossary, registry.yaml, `recd` or the metrics, or of a
message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from recd_plugins.cli.options import REGISTRY
from recd_plugins.compat.packages import DISTRIBUTION
from recd_plugins.errors import RecdError, RegistryError, nearest, shown

__all__ = ["Meaning", "meanings"]

PAGES = ("glossary", "metrics")
"""Pages of docs/ whose tables say what words mean; a wheel has them beside this file."""
ROW = re.compile(r"^\| (?P<words>.+?) \| (?P<text>.+?) \|", flags=re.MULTILINE)
SEVERAL = 3
"""Words that are looked up as a message first, and then as a record's name."""
MOST = 3
"""Messages that are shown of those that a text may be."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """One meaning of a word."""

    kind: str
    """Its kind: a word of the glossary, an option, ..."""
    name: str
    text: str
    page: str
    """The page of docs/ that says more, or the command that does."""

    def values(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})\n  {self.text}\n  {self.page}"


Known = Iterator[tuple[list[str], Meaning]]
"""Names, and what each of them means."""


def meanings(asked: str, registry: Path | None = None) -> list[Meaning]:
    """All meanings of a word; if the text is no known word, the messages that contain it. Records
    are those of the plugins that are installed or that a registry names."""
    asked = " ".join(asked.split())
    known: dict[str, None] = {}
    unread: list[RecdError] = []
    words = len(asked.split())
    records = partial(_records, registry, unread)
    sources: list[Callable[[], Known]] = [_words, _settings, _commands, records]
    if words > 1:  # two may be the name of a record
        sources.insert(3 if words >= SEVERAL else 4, partial(_messages, asked))
    for source in sources:
        found = []
        for names, meaning in source():
            known |= dict.fromkeys(names)
            if _plain(asked) in map(_plain, names):
                found.append(meaning)
        if found:
            return found
    close = nearest(asked, known).partition(" Known:")[0].partition("Known:")[0].strip()
    raise RegistryError(
        f"{shown(asked)} is no word of the glossary, no command, option, record or "
        f"metric{', and part of no message' if words > 1 else ''}{f'; {close}' if close else '.'} "
        "docs/glossary.md lists all words. To find a message, give at least two of its words."
        + "".join(f" Not looked into: {error}" for error in unread)
    )


def _plain(word: str) -> str:
    """`Dedupe_factor` and `dedupe factor` are one word, and so are `train.ranks` and `ranks`."""
    return word.lower().replace("_", " ").replace("-", " ").removeprefix("train.").strip("`. ")


def _words() -> Known:
    for page in PAGES:
        kind = "metric" if page == "metrics" else "word"
        for row in ROW.finditer(_text(page)):
            names = [name.strip("` ") for name in row["words"].split(", ")]
            text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", row["text"])
            yield names, Meaning(kind=kind, name=row["words"], text=text, page=f"docs/{page}.md")


@cache
def _text(page: str) -> str:
    beside = Path(__file__).parent / "pages" / f"{page}.md"
    path = beside if beside.exists() else Path(__file__).parents[3] / "docs" / f"{page}.md"
    return path.read_text(encoding="utf-8")


def _commands() -> Known:
    from recd_plugins.cli.main import app

    for name, command in commands(app):
        text = (command.help or "").split("\n\n")[0]
        shape = f"`recd {name}`"
        meaning = Meaning(
            kind="command", name=shape, text=" ".join(text.split()), page="docs/commands.md"
        )
        yield [name, f"recd {name}"], meaning


def commands(app: Any) -> Iterator[tuple[str, Any]]:
    """Each command and group of commands of `recd`, as a user types it after `recd`."""
    import typer

    def below(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
        load = getattr(command, "load", None)
        whole = command if load is None else load()
        if path:
            yield " ".join(path), whole
        if hasattr(whole, "list_commands"):
            for name in whole.list_commands(None):
                yield from below(whole.commands[name], *path, name)

    yield from below(typer.main.get_command(app))


def _settings() -> Known:
    from recd_plugins.describe import nested, options_of
    from recd_plugins.planning.cluster.topology import Topology
    from recd_plugins.registry.settings import TrainSettings
    from recd_plugins.slots import SLOTS

    for slot, record in SLOTS.items():
        text = (record.__doc__ or "").split("\n\n")[0]
        page = f"docs/slots.md#{slot}"
        yield [slot], Meaning(kind="slot", name=slot, text=" ".join(text.split()), page=page)
    for key, config in {"train": TrainSettings, "topology": Topology}.items():
        parts = {key: config} | {
            f"{key}.{option.name}": inner
            for option in options_of(config)
            for inner in nested(config)
            if inner.__name__ == f"{option.name.capitalize()}Settings"
        }
        for prefix, part in parts.items():
            for option in options_of(part):
                name = f"{prefix}.{option.name}"
                default = f", by default {option.default}" if option.default else ""
                text = f"{option.takes}{default}. {option.doc}"
                meaning = Meaning(kind="option", name=name, text=text, page="docs/train.md")
                yield [name, option.name], meaning


def _messages(asked: str) -> Known:
    """The messages that contain a text of several words."""
    from recd_plugins.cli.messages import messages_like

    for message in messages_like(asked)[:MOST]:
        kind = f"{message.kind}, {message.file}:{message.line}"
        name, text = message.template, message.kind_text
        yield [asked], Meaning(kind=kind, name=name, text=text, page=message.page)


def _records(registry: Path | None, unread: list[RecdError]) -> Known:
    """The records of installed plugins and of those that a registry names. `unread` gets the errors
    of a registry, and of its plugins, that cannot be read: the word may be of anything else."""
    from recd_plugins.describe import options_of
    from recd_plugins.hooks.catalog import Catalog
    from recd_plugins.hooks.imported import available
    from recd_plugins.registry import plugin_names
    from recd_plugins.registry.source import Source

    named: tuple[str, ...] = ()
    try:
        source = Source.read(registry or {}, ())
        named = plugin_names(source.values.get("plugins"))
    except RecdError as error:
        unread.append(error)
    base = Path() if registry is None else registry.parent
    catalog = Catalog([*dict.fromkeys([*named, *sorted(available())])], base, strict=False)
    unread += [error for plugin, error in catalog.broken.items() if plugin in named]
    of_registry = "" if registry in (None, REGISTRY) else f" --registry {registry}"
    for claim in catalog.claims:
        record, whose = claim.record, f"of {claim.provider.plugin}"
        name, page = f"{record.slot}: {record.name}", f"docs/slots.md#{record.slot}-{record.name}"
        if claim.provider.distribution != DISTRIBUTION:  # docs/slots.md has no others
            page = f"recd plugins {record.slot}:{record.name}{of_registry}"
        meaning = Meaning(kind=f"record {whose}", name=name, text=record.summary, page=page)
        yield [record.name, name, f"{record.slot}:{record.name}"], meaning
        for option in options_of(record.config):
            text = f"{option.takes}. {option.doc}"
            kind = f"option of {name}"
            yield (
                [option.name, f"{record.name}.{option.name}"],
                Meaning(kind=kind, name=option.name, text=text, page=page),
            )
