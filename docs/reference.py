"""Writes slots.md, train.md, commands.md and the names of api.md: `python docs/reference.py`.

tests/docs/test_reference.py holds the files to what this prints.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args, get_origin

from recd_plugins import api, slots
from recd_plugins.additions import Addition, NotHere, Situation
from recd_plugins.api.batch import Batch, InverseKeyedJaggedTensor
from recd_plugins.api.data import (
    Cuts,
    GrowingDataset,
    Period,
    Placed,
    Schema,
    SparseFeature,
    StatsReport,
    StatsTable,
    Table,
    Tables,
    TableWriter,
)
from recd_plugins.api.planning import (
    ChosenSizes,
    ModelTable,
    ProfiledTable,
    RowDistribution,
    TableSizes,
    TierPlanner,
)
from recd_plugins.cli.main import app
from recd_plugins.cli.messages import Message, messages
from recd_plugins.cli.new_plugin import example
from recd_plugins.cli.plugins import FORM
from recd_plugins.cli.words import commands
from recd_plugins.data.columns import Columns
from recd_plugins.data.dataset import Dataset
from recd_plugins.describe import attribute_docs, describe, field_docs, nested, options_of
from recd_plugins.hooks.catalog import Catalog
from recd_plugins.hooks.specs import ADDITIONS, HOOKS
from recd_plugins.planning.cluster.topology import PRESETS, Topology
from recd_plugins.registry.settings import TrainSettings
from recd_plugins.tiers.planner.tier_policy import TierPolicy
from recd_plugins.trainer.training import Training

HERE = Path(__file__).parent
LONGEST = 160
"""Letters of arguments, more of which another page lists, or nobody passes."""
NAMES = "## Names"
"""The heading in api.md under which all is generated."""
BUILDS: dict[str, tuple[type, ...]] = {
    "log": (slots.LogStore, slots.GrowingLog),
    "dataset": (Dataset,),
    "etl": (slots.Etl,),
    "stats": (slots.TableStats,),
    "reader": (slots.Reader, slots.Loader),
    "dedup": (slots.DedupConverter, Columns),
    "preprocess": (slots.Preprocess, slots.DensePreprocess),
    "sharding": (slots.Planner,),
    "cache": (slots.Planner,),
    "pooling": (slots.Pooling,),
    "callbacks": (slots.Callback, Training),
}
"""What a slot's record builds, what it may build instead, and what goes in or out of that."""
VALUES: dict[str, tuple[type, ...]] = {
    "log": (Cuts, Placed),
    "dataset": (Schema, SparseFeature, Tables, GrowingDataset, Period),
    "etl": (Table, TableWriter),
    "stats": (StatsReport, StatsTable),
    "reader": (Batch,),
    "dedup": (InverseKeyedJaggedTensor,),
    "cache": (TierPlanner, ChosenSizes, TableSizes, ProfiledTable, ModelTable, RowDistribution),
}
"""What else the methods of these take and return; each is at the slot that has it first."""
INHERITED = (TierPolicy,)
"""Bases that are shown as parts of what they are the base of, which alone is public."""
RELATION = {
    slots.GrowingLog: "or, to be read while it grows,",
    slots.DensePreprocess: "or, of dense columns,",
    slots.Loader: "with",
    Columns: "with",
    Training: "with",
}
"""How all but the first of them are brought in."""
TOPOLOGY = """\
What the ranks and the links between them are, and how fast: what planners price by. It is

- the name of a preset: {presets};
- a file, `topology: topology.yaml`, as `recd topology measure --save topology.yaml` writes it;
- a mapping of the options below, over those of a preset or a file that `use` names:
  `topology: {{use: a100_dgx, ranks_per_node: 4, a2a_global: {{gbps: 18, latency_ms: 0.4}}}}`.

What it leaves out is taken as the table says."""
NOTES = {
    "many": ", in order",
    "by feature": "; `*` stands for every feature",
}


def slots_page() -> str:
    catalog = Catalog(["recd_dlrm", "recd_dedup", "recd_dsi", "recd_flexshard", "recd_scars"], HERE)
    return "\n".join(_slots_page(catalog)) + "\n"


def train_page() -> str:
    begin = "How a job trains: under `train` in registry.yaml, or as `train.steps=50` of a command."
    lines = ["# The `train` key", "", begin, "", *_options(TrainSettings)]
    lines += ["", "## The `topology` key", "", TOPOLOGY.format(presets=", ".join(PRESETS)), ""]
    return "\n".join([*lines, *_options(Topology)]) + "\n"


def commands_page() -> str:
    """Every command of `recd`, in the order of `recd --help`."""
    lines = [
        "# Commands",
        "",
        "Written by `python docs/reference.py`; `recd COMMAND --help` says the same. `--json`",
        "prints one JSON object on standard output; progress is drawn on standard error. `recd",
        "--version` prints the version, `recd doctor` all that it runs on, and `recd",
        "--install-completion` has the shell complete commands and options.",
        "",
        "| command | what it does | `--json` | progress |",
        "|---|---|---|---|",
    ]
    every = {name: one for name, one in commands(app) if not hasattr(one, "commands")}
    modules = Counter(one.callback.__module__ for one in every.values())
    for name, command in every.items():
        options = {option for parameter in command.params for option in parameter.opts}
        call = inspect.unwrap(command.callback)
        alone = modules[call.__module__] == 1
        source = inspect.getsource(inspect.getmodule(call) if alone else call)
        shows = ("with progress()", "= ready(")
        bar = "a bar" if any(one in source for one in shows) else ""
        mark = "yes" if "--json" in options else ""
        anchor = f"recd {name}".replace(" ", "-")
        summary = _summary(command).split(". ")[0].rstrip(".")
        lines.append(f"| [`recd {name}`](#{anchor}) | {summary} | {mark} | {bar} |")
    for name, command in every.items():
        lines += [f"\n## recd {name}\n", _summary(command), ""]
        lines += ["| | takes | default | |", "|---|---|---|---|"]
        lines += [_parameter(one) for one in command.params if one.name != "help"]
    return "\n".join(lines) + "\n"


def _summary(command: Any) -> str:
    return " ".join((command.help or "").partition("\f")[0].split())


def _parameter(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    hint = parameter.type_descriptor.annotation
    several = ", any number" if get_origin(hint) is list else ""
    takes = describe(get_args(hint)[0] if several else hint).replace("|", "or") + several
    takes = "" if getattr(parameter, "is_flag", False) else takes
    default = parameter.default
    shown = "required" if parameter.required else f"`{default}`"
    if default in (None, False, [], ()) and not parameter.required:
        shown = ""
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    return f"| {names.replace('|', chr(92) + '|')} | {takes} | {shown} | {text} |"


def messages_page() -> str:
    """Every message, by the page that says more: for the site, which is built from the sources."""
    found: dict[str, list[Message]] = {}
    for message in messages():
        found.setdefault(message.page, []).append(message)
    lines = [
        "# Messages",
        "",
        "Every message of the host and its plugins; `…` stands for what differs each time. A",
        "message says what is wrong, who is concerned and how to fix it. `recd explain 'MESSAGE'`",
        "finds one by any part of it.",
        "",
        "| kind | what it is |",
        "|---|---|",
        *sorted({f"| {one.kind} | {one.kind_text} |" for one in messages()}),
    ]
    for page, several in sorted(found.items()):
        lines += [f"\n## [{Path(page).stem}]({Path(page).name})\n"]
        for one in several:
            template = one.template.replace("`", "'")
            lines.append(f"- `{template}` {one.kind}, {one.file}:{one.line}")
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """The page as it is, its names anew."""
    written, _, _ = (HERE / "api.md").read_text().partition(f"{NAMES}\n")
    return "\n".join([written + NAMES, *_names()]) + "\n"


def _names() -> Iterator[str]:
    """Each public name with the first sentence of its text, a function with its arguments and what
    it returns."""
    yield (
        "\nWritten by `python docs/reference.py`. An argument with `=` behind it has a default; "
        "behind `->` is what a function returns."
    )
    modules = [
        api,
        *(import_module(f"{api.__name__}.{one.name}") for one in iter_modules(api.__path__)),
    ]
    for module in modules:
        yield f"\n### {module.__name__}\n"
        yield f"{(module.__doc__ or '').splitlines()[0]}\n"
        constants = _constants(module.__name__)
        for name in module.__all__:
            thing = getattr(module, name)
            text = constants.get(name) or _text(thing)
            sentence = re.match(r".*?[.](?= |$)", text)
            assert sentence, f"{module.__name__}.{name} has no text that ends in a full stop"
            yield f"- `{name}{_arguments(thing)}{_returned(thing)}`: {sentence[0]}"


def _arguments(thing: Any) -> str:
    """How a function is called, and what a config or a value is made of, without types."""
    value = inspect.isclass(thing) and dataclasses.is_dataclass(thing)
    if not value and not inspect.isfunction(thing):
        return ""
    shown, keywords = [], False
    for name, one in inspect.signature(thing).parameters.items():
        if one.kind is one.KEYWORD_ONLY and not keywords:
            keywords = True
            shown.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        keywords = keywords or one.kind is one.VAR_POSITIONAL
        shown.append(f"{stars}{name}{'' if one.default is one.empty else '='}")
    arguments = f"({', '.join(shown)})"
    return arguments if len(arguments) <= LONGEST else ""


def _returned(thing: Any) -> str:
    """What a function returns, if that is anything: the fields of a tuple that has names."""
    if not inspect.isfunction(thing):
        return ""
    returned = str(inspect.signature(thing).return_annotation)
    kind = thing.__globals__.get(returned)
    if inspect.isclass(kind) and issubclass(kind, tuple):
        returned = f"{returned}({', '.join(kind._fields)})"
    return "" if returned in ("None", "typing.Any") else f" -> {returned}"


@cache
def _constants(module: str) -> dict[str, str]:
    """The text under each name that a module assigns, or imports from one that does."""
    body = ast.parse(inspect.getsource(import_module(module))).body
    texts: dict[str, str] = {}
    for source in body:
        if isinstance(source, ast.ImportFrom) and (source.module or "").startswith("recd_plugins"):
            imported = {one.name for one in source.names}
            theirs = _constants(source.module or "")
            texts |= {name: text for name, text in theirs.items() if name in imported}
    for assigned, text in pairwise(body):
        match assigned, text:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(doc))),
            ):
                texts[name] = " ".join(doc.split())
    return texts


def _slots_page(catalog: Catalog) -> Iterator[str]:
    yield "# Slots"
    yield ""
    yield "Written by `python docs/reference.py` from the docstrings; `recd plugins` says the same."
    yield "All names are in `recd_plugins.api`, or in one of [its modules](api.md#names)."
    yield "Give the fields of a class by name, as the examples do: most take them in no other way."
    for kind in (slots.Record, slots.Context):
        yield f"\n## {kind.__name__}\n"
        yield inspect.getdoc(kind) or ""
        yield ""
        yield from _fields(kind)
        yield from _members(kind, indent="")
    for slot, record in slots.SLOTS.items():
        yield f"\n## {slot}\n"
        yield inspect.getdoc(record) or ""
        yield ""
        (hook,) = (name for name, of in HOOKS.items() if of == slot)
        yield f"- hook: `{hook}()`, which returns `{record.__name__}` records"
        form = FORM[record.fills].format(slot=slot)
        if slot == "preprocess":
            form = form.replace("name,", "name, features: [feature, glob],")
        yield f"- registry.yaml: `{form}`{NOTES.get(record.fills, '')}"
        for index, kind in enumerate(BUILDS.get(slot, ())):
            how = RELATION[kind] if index else "builds"
            yield f"- {how} `{kind.__name__}`: {_text(kind)}"
            if kind is Training:
                yield from (f"    {line}" for line in _fields(kind))
            yield from _members(kind)
        for kind in VALUES.get(slot, ()):
            yield from _value(kind)
        yield f"\n`recd plugins new my_{slot} --slot {slot}` writes, with a test:\n"
        yield f"```python\n{example(f'my_{slot}', slot)}```"
        for claim in catalog.of(slot):
            yield f"\n### {slot}: {claim.record.name}\n"
            yield f"{claim.record.summary} From `{claim.provider.plugin}`.\n"
            yield from _options(claim.record.config)
            if slots.stands_in_front(claim.record):
                yield f"\n`others` beside the options: {slots.OTHERS_DOC}"
    yield "\n## Additions\n"
    yield "What a plugin would put into a registry, for `recd advise` to weigh. They fill no slot;"
    yield "[advise.md](advise.md#what-a-plugin-does-to-be-advised) has an example."
    yield ""
    yield f"- hook: `{ADDITIONS}()`, which returns `Addition`s"
    for kind in (Addition, Situation, NotHere):
        yield from _value(kind)


def _value(kind: type) -> Iterator[str]:
    """What goes in or out of builds: its fields, and its members that have a text of their own."""
    yield f"- with `{kind.__name__}`: {_text(kind)}"
    for part in reversed(kind.__mro__):
        if part is kind or part in INHERITED:
            yield from _part(part)


def _part(kind: type) -> Iterator[str]:
    """What a class itself adds to its bases."""
    if dataclasses.is_dataclass(kind):
        yield from (f"    {line}" for line in _fields(kind))
    else:
        docs = {name: text for name, text in attribute_docs(kind).items() if name not in vars(kind)}
        hints = inspect.get_annotations(kind)
        for name in getattr(kind, "_fields", docs):
            hint = getattr(hints[name], "__forward_arg__", hints[name])
            yield f"    - `{name}: {hint}`{_behind(docs.get(name, ''))}"
    yield from _members(kind, all_of_them=False)


def _text(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def _fields(kind: type) -> Iterator[str]:
    docs = field_docs(kind)
    for field in dataclasses.fields(kind):
        if field.name.startswith("_"):
            continue
        default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
        default = default.replace("Posix", "")
        if field.default_factory is not dataclasses.MISSING:
            default = f" = {field.default_factory()!r}"
        default = re.sub(r"<function (\w+) at 0x\w+>", r"\1", default)
        yield f"- `{field.name}: {field.type}{default}`{_behind(docs.get(field.name, ''))}"


def _behind(text: str) -> str:
    """The text behind what it is of, if there is any."""
    return f": {' '.join(text.split())}" if text else ""


def _members(kind: type, indent: str = "    ", *, all_of_them: bool = True) -> Iterator[str]:
    """Attributes with a text, properties and methods, in the order of the class; or those alone
    that have a text of their own, with what makes one."""
    is_value = dataclasses.is_dataclass(kind)
    docs = {} if is_value else attribute_docs(kind)
    for name, member in vars(kind).items():
        if name in docs and not name.startswith("_"):
            hint = inspect.get_annotations(kind)[name]
            yield f"{indent}- `{name}: {hint} = {member!r}`: {' '.join(docs[name].split())}"
        public = not name.startswith("_") or name in ("__call__", "__iter__", "__len__")
        if not all_of_them:
            public = public or (name == "__init__" and not is_value)
            if isinstance(member, cached_property):
                member = property(member.func)
            if isinstance(member, classmethod):
                member = member.__func__
            has_text = member.__doc__ or isinstance(member, property)
            if not has_text or (is_value and name in kind.__dataclass_fields__):
                continue
        if public and isinstance(member, property):
            hint = inspect.get_annotations(member.fget)["return"]
            yield f"{indent}- `{name}: {hint}`, a property{_behind(_text(member))}"
        if public and inspect.isfunction(member):
            signature = str(inspect.signature(member)).replace("'", "")
            signature = re.sub(r"<function (\w+) at 0x\w+>", r"\1", signature)
            signature = re.sub(r"\((self|cls)(, )?", "(", signature, count=1)
            of_class = isinstance(vars(kind)[name], classmethod)
            called = f"{kind.__name__}.{name}" if of_class else name
            yield f"{indent}- `{called}{signature}`: {_text(member)}"


def _options(config: type[Any]) -> Iterator[str]:
    """The options of a config, and of each config within it, once."""
    options = options_of(config)
    if not options:
        yield "No options."
        return
    configs = [config]
    for one in configs:
        if one is not config:
            yield f"\n`{one.__name__}`: {inspect.getdoc(one)}\n"
        yield "| option | takes | default | |"
        yield "|---|---|---|---|"
        for option in options_of(one):
            takes, default = option.takes.replace("|", "or"), option.default
            shown = default if default in ("", "required", "...") else f"`{default}`"
            yield f"| `{option.name}` | {takes} | {shown} | {option.doc} |"
        configs += [part for part in nested(one) if part not in configs]


if __name__ == "__main__":
    (HERE / "slots.md").write_text(slots_page())
    (HERE / "train.md").write_text(train_page())
    (HERE / "commands.md").write_text(commands_page())
    (HERE / "api.md").write_text(api_page())
