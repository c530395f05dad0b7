"""A schema of foreign files as a YAML file; paths of vocabularies are relative to that file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recd_plugins.config import parse
from recd_plugins.config.yaml_text import read_yaml, text_of, to_yaml
from recd_plugins.data.foreign import ForeignFeature, ForeignSchema
from recd_plugins.data.importing.text_form import TextForm
from recd_plugins.errors import DataError, RegistryError, shown
from recd_plugins.notices import Notices
from recd_plugins.storage.uri import Location, Uri, location_of

__all__ = [
    "as_yaml",
    "load_schema",
    "load_schema_and_form",
    "options_of_form",
    "options_of_schema",
    "parsed",
]


def load_schema(path: str | Location) -> ForeignSchema:
    """The schema in a file that a person or `recd data schema` wrote."""
    return load_schema_and_form(location_of(path))[0]


def load_schema_and_form(path: Location) -> tuple[ForeignSchema, TextForm]:
    """The schema in a file, and how it reads text."""
    try:
        document = read_yaml(text_of(path), str(path))
    except FileNotFoundError:
        raise DataError(
            f"{path}: there is no such schema to read. `recd data schema FILE --out {path}` writes "
            "one."
        ) from None
    options = document.values
    if not isinstance(options, dict):
        raise RegistryError(f"{path}: must hold a mapping, as `recd data schema` writes it.")
    inner = options.get("schema", options)
    if not isinstance(inner, dict):
        raise RegistryError(f"{path}: `schema` must be a mapping, as `recd data schema` writes it.")
    schema, form = parsed(inner, str(path))
    Notices(path=path, lines=document.lines).give(document.notices(path), rank=0)
    sparse = tuple(_located(feature, path.parent) for feature in schema.sparse)
    return dataclasses.replace(schema, sparse=sparse), form


def parsed(options: Mapping[str, Any], where: str) -> tuple[ForeignSchema, TextForm]:
    """A schema, and how text is read, by its key `text`."""
    schema = {name: value for name, value in options.items() if name != "text"}
    of_text = options.get("text") or {}
    if not isinstance(of_text, dict):
        raise RegistryError(
            f"must be a mapping of how text is read, as {{delimiter: ';', header: false}}, but is "
            f"{shown(of_text)}.",
            f"{where}: text",
        )
    form: TextForm = parse(TextForm, of_text, f"{where}: text")
    return parse(ForeignSchema, schema, where, beside=["text"]), form


def _located(feature: ForeignFeature, folder: Location) -> ForeignFeature:
    own = feature.vocabulary
    if own is None or isinstance(own, Uri) or own.is_absolute():
        return feature
    return dataclasses.replace(feature, vocabulary=folder / str(own))


def as_yaml(schema: ForeignSchema, form: TextForm) -> str:
    """The options of the schema and of the text form that differ from their defaults, as YAML."""
    text = options_of_form(form)
    options = options_of_schema(schema) | ({"text": text} if text else {})
    return to_yaml(options, flow=None)


def options_of_schema(schema: Any) -> dict[str, Any]:
    """A schema, of foreign files or of a table, as options for registry.yaml."""
    options: dict[str, Any] = _plain(schema)
    if options.get("labels"):
        options.pop("label", None)
    # The default names of a table's columns are kept: the text is easier to read with them.
    return {
        name: options.get(name, getattr(schema, name))
        for name in ("session_id", "timestamp")
        if name not in options
    } | options


def options_of_form(form: TextForm) -> dict[str, Any]:
    """The form of text, as the options of `text` in a schema's file."""
    options: dict[str, Any] = _plain(form)
    return options


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {}
        for field in dataclasses.fields(value):
            one = getattr(value, field.name)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            if one != default:
                found[field.name] = _plain(one)
        return found
    if isinstance(value, Path | Uri):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value
