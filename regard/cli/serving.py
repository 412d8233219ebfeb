"""The verb that serves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import app
from regard.cli.options import Device, Precision, PrecisionName
from regard.errors import ConfigError, installing
from regard.limits import MOST, MOST_SECONDS, MOST_WORKERS

LIMITS, WHO = "Limits", "Who may ask"
MODELS_HELP = (
    "A bundle, a run or a model that comes with regard, or NAME=FOLDER; may be given again. Without it: all that come with regard."
)


@app.command()
def serve(
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help=MODELS_HELP)] = None,
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 is every one of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    device: Device = None,
    precision: Precision = PrecisionName.AUTO,
    reads: Annotated[str, typer.Option(help="The language that translators read, for LibreTranslate's clients.")] = "en",
    writes: Annotated[str | None, typer.Option(help="The language that a translator without tags writes.")] = None,
    runs: Annotated[Path | None, typer.Option(help="A folder of trainings (or one), whose curves the page shows as they go on.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="REGARD_API_KEY", help="What requests must know to be answered.", rich_help_panel=WHO)
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which requests may address it, such as that of a proxy.", rich_help_panel=WHO)
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="A site whose pages may ask, as https://example.org.", rich_help_panel=WHO)
    ] = None,
    max_body: Annotated[int, typer.Option(min=1024, max=MOST, help="Bytes of a request.", rich_help_panel=LIMITS)] = 1 << 20,
    max_texts: Annotated[int, typer.Option(min=1, max=MOST, help="Texts of a request.", rich_help_panel=LIMITS)] = 128,
    max_characters: Annotated[int, typer.Option(min=1, max=MOST, help="Of a text.", rich_help_panel=LIMITS)] = 10_000,
    max_waiting: Annotated[int, typer.Option(min=1, max=MOST, help="Texts that may wait for their turn.", rich_help_panel=LIMITS)] = 256,
    max_streams: Annotated[int, typer.Option(min=1, max=MOST, help="Outputs streamed at once.", rich_help_panel=LIMITS)] = 4,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_WORKERS,
            help="Batches worked on at once; by default one a core, at most 4, on a GPU one.",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=MOST_SECONDS, help="Seconds that a request may take.", rich_help_panel=LIMITS)
    ] = 60.0,
) -> None:
    """Serve models: a page, JSON for every verb, and the interfaces of LibreTranslate and OpenAI for their clients.

    Prints the address once it can be asked. On SIGTERM or Ctrl-C it takes no more, finishes what was taken, and ends.
    """
    try:
        from regard.serve.desk import load_all
        from regard.serve.run import bind
        from regard.serve.run import serve as run
        from regard.serve.settings import LOOPBACK, Limits, Settings
    except ModuleNotFoundError as error:
        raise ConfigError(f"serving needs {error.name}, which is not installed; {installing('serve')}") from None
    if api_key == "":
        raise typer.BadParameter("--api-key is empty; leave it out to let everyone ask")
    if api_key is None and os.environ.get("REGARD_API_KEY") == "":  # taken as if it were not there, and all would be let in
        raise typer.BadParameter("REGARD_API_KEY is empty; unset it to let everyone ask, or put a key into it")
    local = host in LOOPBACK
    # A page elsewhere can have a name of its own point at this machine; what it asks then still bears that name.
    named = [] if host in ("0.0.0.0", "::") else [host]
    hosts = frozenset(name.lower() for name in (*LOOPBACK, *named, *(allow_host or []))) if local or allow_host else frozenset()
    limits = Limits(max_body, max_texts, max_characters, max_waiting, max_streams, timeout)
    settings = Settings(limits, api_key, hosts, tuple(allow_origin or ()), reads, writes, runs, workers)
    if not local and api_key is None:
        print("regard: everyone who reaches this machine may ask; --api-key sets a key", file=sys.stderr)
    with bind(host, port) as bound:  # what is taken is said before models are loaded
        models = load_all(model or [], device, precision.value)

        def ready(address: str) -> None:
            print(f"regard: {', '.join(models)} at {address}", flush=True)

        run(models, settings, bound, ready)
