"""The packages installed beside recd-plugins, as a CycloneDX bill of materials."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, distributions
from typing import Any

from recd_plugins.compat.packages import DISTRIBUTION

__all__ = ["bill_of_materials"]


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX 1.6, of every distribution in this environment, with what it depends on here.

    The same environment gives the same bill: it has no serial number and no time.
    """
    found: dict[str, Distribution] = {}
    for one in distributions():
        found.setdefault(_name(one.metadata["Name"]), one)  # the first is the one imported
    components = {name: _component(name, one) for name, one in sorted(found.items())}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": components[DISTRIBUTION] | {"type": "application"}},
        "components": [one for name, one in components.items() if name != DISTRIBUTION],
        "dependencies": [
            {
                "ref": components[name]["bom-ref"],
                "dependsOn": [components[each]["bom-ref"] for each in _needs(found[name], found)],
            }
            for name in components
        ],
    }


def _name(name: str) -> str:
    """The name as the package index writes it: PyYAML is pyyaml, fbgemm_gpu-cpu is
    fbgemm-gpu-cpu."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _component(name: str, one: Distribution) -> dict[str, Any]:
    # A local version, as torch's 2.13.0+cpu, is written with %2B in a package URL.
    url = f"pkg:pypi/{name}@{one.version.replace('+', '%2B')}"
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": url,
        "name": name,
        "version": one.version,
        "purl": url,
    }
    if expression := _field(one, "License-Expression"):
        made["licenses"] = [{"expression": expression}]
    elif names := _licenses(one):
        made["licenses"] = [{"license": {"name": each}} for each in names]
    return made


def _field(one: Distribution, name: str) -> str:
    found = one.metadata.get_all(name)
    return found[0] if found else ""


def _licenses(one: Distribution) -> list[str]:
    """The licenses from the classifiers, or else from the field, if it is a name and not a whole
    text."""
    classified = [
        each.rpartition(" :: ")[2]
        for each in one.metadata.get_all("Classifier") or ()
        if each.startswith("License :: ") and not each.endswith(":: OSI Approved")
    ]
    field = _field(one, "License")
    return classified or ([field] if field and "\n" not in field and len(field) < 100 else [])


def _needs(one: Distribution, found: dict[str, Distribution]) -> list[str]:
    """The distributions of this environment that one requires, without those of its extras."""
    asked = {
        _name(match[0])
        for requirement in one.requires or ()
        if (match := re.match(r"[\w.-]+", requirement))
        and not re.search(r";.*\bextra\s*==", requirement)
    }
    return sorted(asked & set(found))
