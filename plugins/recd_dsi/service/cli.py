"""`recd serve`: workers and a coordinator of the reader service, and how many are needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from recd_plugins.api import CapabilityError, RegistryError
from recd_plugins.api.cli import (
    AsJson,
    Commands,
    Debug,
    Overrides,
    RegistryFile,
    ended_by_signals,
    progress,
    reported,
)

if TYPE_CHECKING:
    from recd_dsi.service.coordinator import Coordinator
    from recd_dsi.service.credentials import Credentials
    from recd_dsi.service.fleet import Backend
    from recd_plugins import Stack

__all__ = ["serve"]


class _Serve(TyperGroup):
    """`recd serve --advise` is `recd serve advise`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["advise", *args[1:]] if args[:1] == ["--advise"] else args)


serve = Commands(
    cls=_Serve,
    help="The reader service: workers that read for trainers; --advise says how many.",
    no_args_is_help=True,
    add_completion=False,
)

Host = Annotated[
    str,
    typer.Option(
        "--host", help="The address to listen on; any but 127.0.0.1 needs a token and TLS."
    ),
]
Port = Annotated[
    int, typer.Option("--port", help="The port; 0 takes a free one.", min=0, max=65535)
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", help="A file with the token that callers must know.", metavar="FILE"
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", help="The certificate for TLS, as PEM.", metavar="FILE"),
]
Key = Annotated[
    Path | None, typer.Option("--key", help="The certificate's key, as PEM.", metavar="FILE")
]


@serve.command()
def coordinator(
    overrides: Overrides = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry",
            help="The registry for which workers are started on this machine.",
            metavar="FILE",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", help="The number of workers to begin with; there are never fewer.", min=1
        ),
    ] = 1,
    most_workers: Annotated[
        int | None,
        typer.Option(
            "--most-workers",
            help="The most workers that are started where clients' buffers run empty.",
            min=1,
        ),
    ] = None,
    backend: Annotated[
        Literal["local", "ray"],
        typer.Option("--backend", help="What starts the workers: local, or ray.", metavar="NAME"),
    ] = "local",
    host: Host = "127.0.0.1",
    port: Port = 0,
    page: Annotated[
        int | None,
        typer.Option(
            "--page",
            help="A port of 127.0.0.1 for a page and /metrics; 0 is a free one.",
            min=0,
            max=65535,
        ),
    ] = None,
    token_file: TokenFile = None,
    certificate: Certificate = None,
    key: Key = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Hear workers, and tell trainers of them; start workers, as many as trainers need."""
    with reported(debug):
        from recd_dsi.service.addresses import called_at, check_callable
        from recd_dsi.service.coordinator import Coordinator
        from recd_dsi.service.credentials import credentials_of
        from recd_dsi.service.scaling import Bounds, Scaler, Scaling
        from recd_plugins.api.reading import die_with_parent

        die_with_parent()
        if registry is None:
            _check_starts_none(overrides or (), backend, workers, most_workers)
        if most_workers is not None and most_workers < workers:
            raise RegistryError(
                f"--most-workers: {most_workers} is fewer than the {workers} of --workers. Raise "
                "it, or lower --workers."
            )
        stack = None if registry is None else _checked(registry, overrides or ())
        if stack is not None:
            check_callable(host)  # its workers listen there, too
        bounds = None if most_workers is None else Bounds(fewest=workers, most=most_workers)
        credentials = credentials_of(token_file, certificate, key)
        server = Coordinator(host, port, credentials)
        listens = {"serves": called_at(server.address)}
        if not as_json:
            typer.echo(f"serves {listens['serves']}")
        if listens["serves"] != server.address:
            typer.echo(
                f"{server.address} is all addresses of this machine: workers and ranks name one "
                "that the certificate has, as its name, with this token and certificate",
                err=True,
            )
        started = None
        if stack is not None:
            started = _started(stack, backend, workers, server, credentials)
        if bounds is not None:
            server.scaling = Scaling(bounds)
            Scaler(server.scaling, server.clients, started)
        if page is not None:
            listens["page"] = _page(server, page)
            if not as_json:
                typer.echo(f"page {listens['page']}")
        if as_json:
            typer.echo(json.dumps(listens))
        server.serve()


@serve.command()
def worker(
    overrides: Overrides = None,
    registry: RegistryFile = Path("registry.yaml"),
    join: Annotated[
        str | None, typer.Option("--join", help="The coordinator to join.", metavar="HOST:PORT")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    buffer_mib: Annotated[
        int, typer.Option("--buffer-mib", help="The MiB of batches that are kept in memory.", min=1)
    ] = 256,
    cache: Annotated[
        Path | None,
        typer.Option("--cache", help="A folder in which more batches are kept.", metavar="FOLDER"),
    ] = None,
    token_file: TokenFile = None,
    certificate: Certificate = None,
    key: Key = None,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Make the batches of a registry for whoever asks."""
    with reported(debug):
        from recd_dsi.service.coordinator_callers import join as join_coordinator
        from recd_dsi.service.credentials import credentials_of
        from recd_dsi.service.worker import Worker, WorkerOptions, settle
        from recd_plugins import load
        from recd_plugins.api.reading import die_with_parent

        die_with_parent()
        settle()
        credentials = credentials_of(token_file, certificate, key)
        options = WorkerOptions(
            host=host, port=port, buffer_bytes=buffer_mib << 20, disk=cache, credentials=credentials
        )
        # What plugins print is no part of what the command says.
        with redirect_stdout(sys.stderr):
            server = Worker(load(registry, overrides or ()).delivery(), options)
        if join is not None:
            join_coordinator(server, join, credentials)
        address = server.address
        typer.echo(json.dumps({"serves": address}) if as_json else f"serves {address}")
        server.serve()


@serve.command()
def advise(
    overrides: Overrides = None,
    registry: RegistryFile = Path("registry.yaml"),
    steps: Annotated[
        int, typer.Option("--steps", help="The number of steps of a turn of the trainer.", min=1)
    ] = 20,
    rounds: Annotated[
        int, typer.Option("--rounds", help="The number of turns that each side takes.", min=1)
    ] = 3,
    batches: Annotated[
        int,
        typer.Option("--batches", help="The least number of batches that a worker serves.", min=1),
    ] = 200,
    margin: Annotated[
        float,
        typer.Option(
            "--margin", help="How many times what the trainer takes workers are to make.", min=1.0
        ),
    ] = 1.25,
    debug: Debug = False,
    as_json: AsJson = False,
) -> None:
    """Say how many workers a registry's trainer needs, with its dedup and without, and what they
    cost.

    Both are measured here, one after the other: the trainer takes batches that lie in memory, and
    one worker makes batches as fast as it can.
    """
    with reported(debug), ended_by_signals():
        from recd_dsi.service.sizing import measured_sizings, sizing_lines

        with progress() as show:
            found = measured_sizings(
                registry,
                overrides or (),
                rounds=rounds,
                steps=steps,
                batches=batches,
                margin=margin,
                show=show,
            )
    typer.echo(json.dumps(found.summary()) if as_json else "\n".join(sizing_lines(found)))


def _check_starts_none(
    overrides: Sequence[str], backend: str, workers: int, most_workers: int | None
) -> None:
    """`RegistryError` for what is of workers that a coordinator starts, of one that starts none."""
    options = {
        f"override {', '.join(overrides)}": bool(overrides),
        "--backend": backend != "local",
        "--workers": workers != 1 and most_workers is None,
    }
    for option, is_given in options.items():
        if is_given:
            raise RegistryError(
                f"{option}: does nothing here, because a coordinator starts workers of its "
                "--registry alone. Name one, or take this out and start each by `recd serve worker "
                "--join`."
            )


def _checked(registry: Path, overrides: Sequence[str]) -> Stack:
    """The stack of a registry with a dataset: nobody is asked to join before it is known to be
    right."""
    from recd_plugins import load

    with redirect_stdout(sys.stderr):  # what plugins print is no part of what the command says
        stack = load(registry, overrides)
    stack.registry.one("dataset")
    return stack


def _started(
    stack: Stack,
    backend: str,
    workers: int,
    server: Coordinator,
    credentials: Credentials,
) -> Backend:
    """Workers of a registry that join the coordinator of this process, and listen on its host."""
    from recd_dsi.service.addresses import host_and_port
    from recd_dsi.service.local_backend import LocalBackend
    from recd_dsi.service.ray_backend import RayBackend
    from recd_dsi.service.worker import WorkerOptions

    with redirect_stdout(sys.stderr):
        delivery = stack.delivery()
    host, _ = host_and_port(server.address)  # where ranks call it, they can call its workers
    options = WorkerOptions(host=host, join=server.address, credentials=credentials)
    given = (delivery, options, workers, server.has_started)
    found = RayBackend(*given, address="auto") if backend == "ray" else LocalBackend(*given)
    found.wait()
    return found


def _page(server: Coordinator, port: int) -> str:
    """The address of a page of what a coordinator knows, which is served from now on."""
    from recd_dsi.service.page import Page

    try:
        return Page(server.known, port).address
    except OSError as error:
        raise CapabilityError(
            f"--page: no page can be served at 127.0.0.1:{port} ({error.strerror}). Name another "
            "port, or 0 for a free one."
        ) from None


if __name__ == "__main__":
    serve()
