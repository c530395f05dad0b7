"""`recd explain`: what a word or a message means; what a row costs in every tier."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

import typer

from recd_plugins.cli.options import REGISTRY, AsJson, Debug, RegistryFile, check_of_use
from recd_plugins.cli.plan import Ranks, overrides_with_ranks
from recd_plugins.cli.reported import reported
from recd_plugins.errors import shown

__all__ = ["explain"]

MOST = 1e12
"""Lookups of a row in a sample, or copies of it, beyond all that prices are of."""
OVERRIDE = re.compile(r"[^\s=]+=")

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORD|key=value]...",
        help="A word of the glossary, an option, a record (of the registry's plugins, too), a "
        "metric, or a message that was printed; or overrides of the registry, for prices.",
    ),
]
Lookups = Annotated[
    float,
    typer.Option(
        "--p", help="The expected number of lookups of the row in a sample.", min=0, max=MOST
    ),
]
RowBytes = Annotated[int, typer.Option("--row-bytes", help="The bytes of the row.", min=1)]
Factor = Annotated[
    float, typer.Option("--dedupe-factor", help="The dedupe factor, which divides lookups.", min=1)
]
Multiplier = Annotated[
    float | None,
    typer.Option(
        "--k",
        help="The bytes that a replica takes, divided by the row's own; by default as the "
        "planner has it.",
        min=1,
        max=MOST,
        show_default=False,
    ),
]
Whose = Annotated[
    Literal["ours", "paper"],
    typer.Option(
        "--prices",
        help="`ours` are prices of what our tiers do. `paper` are FlexShard's: a row is sent "
        "once per access, the gradients of all replicas are all-reduced in every step, and k is "
        "6.25.",
    ),
]


def explain(
    words: Words = None,
    registry: RegistryFile = REGISTRY,
    ranks: Ranks = None,
    p: Lookups = 0.001,
    row_bytes: RowBytes = 256,
    dedupe_factor: Factor = 1.0,
    k: Multiplier = None,
    prices: Whose = "ours",
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Say what a word or a message means; without one, price a row in every tier, with formulas.

    `recd explain "dedupe factor"`, `recd explain hang_after`, or any part of a message.
    """
    with reported(debug):
        asked = " ".join(word for word in words or () if not OVERRIDE.match(word))
        if asked:
            check_of_use(
                {
                    "--ranks": ranks is not None,
                    "--p": p != 0.001,
                    "--row-bytes": row_bytes != 256,
                    "--dedupe-factor": dedupe_factor != 1,
                    "--k": k is not None,
                    "--prices": prices != "ours",
                },
                f"it is of prices, and {shown(asked)} is looked up as a word",
                "Leave the word out",
            )
            from recd_plugins.cli.words import meanings

            there = registry != REGISTRY or registry.exists()
            found = meanings(asked, registry if there else None)
            entries = [meaning.values() for meaning in found]
            text = "\n\n".join(map(str, found))
            print(json.dumps({"word": asked, "meanings": entries}) if as_json else text)
            return
        from recd_plugins.planning.cluster.cluster import Cluster
        from recd_plugins.planning.explain.price_list import FLOAT, PriceList
        from recd_plugins.planning.prices.cost import PAPER_K, priced
        from recd_plugins.planning.prices.replica_factor import row_factor, row_passes
        from recd_plugins.registry import Registry

        chosen = Registry.load(registry, overrides_with_ranks(words, ranks))
        train, usual = chosen.train, PAPER_K if prices == "paper" else None
        cluster, fused = Cluster.of(chosen.topology, train.ranks), train.optimizer.fused_params()
        listed = PriceList(
            prices=priced(
                prices,
                cluster=cluster,
                batch_size=train.batch_size,
                k=k or usual or row_factor(fused, max(row_bytes // FLOAT, 1)),
                stepped=row_passes(fused, cluster),
                carried=train.codecs.carried,
            ),
            p=p,
            width=row_bytes,
            dedupe_factor=dedupe_factor,
        )
        print(json.dumps(listed.values()) if as_json else "\n".join(listed.lines()))
