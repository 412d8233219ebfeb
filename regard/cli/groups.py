"""What `--help` shows: the verbs by what they are for, and for each how people begin with it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# Group by group, in the order of the help; to each verb one or two examples.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "Ask a model": {
        "translate": ('regard translate "I love you very much." --to it', "regard translate --input lines.txt --output out.txt --to de"),
        "generate": ('regard generate "I would like to" --seed 2', "regard generate --chat --model FOLDER"),
        "classify": ('regard classify "what a lovely film" --model runs/reviews',),
        "fill": ('regard fill "what a [MASK] film" --model runs/words',),
        "embed": ('regard embed "a lovely film" "an awful film" --output vectors.npy --model runs/words',),
        "score": ('regard score "Good morning." "Buongiorno." --to it',),
    },
    "Train": {
        "train": ("regard train --task translate --train pairs.tsv --dev dev.tsv --out run", "regard train --resume --out run"),
        "evaluate": ("regard evaluate --data test.tsv --model run", "regard evaluate --data test.tsv --model run --model other"),
        "data": (),
    },
    "Look": {
        "models": ("regard models",),
        "info": ("regard info transformer-base", "regard info run"),
        "view": ('regard view "I love you very much." --to it --out page.html',),
        "check": ("regard check run",),
        "lengths": ("regard lengths --data test.tsv --model run",),
        "pianoroll": ("regard pianoroll piece.mid --output piece.png",),
    },
    "Bring and take": {
        "import": ("regard import FOLDER bundle", "regard import model.gguf bundle"),
        "export": ("regard export run/bundle out --to ctranslate2",),
    },
    "Serve": {"serve": ("regard serve", "regard serve --model run --port 9000")},
    "About": {"demo": ("regard demo",), "doctor": ("regard doctor",)},
}


def _switches_alone(params: list[Any]) -> list[Any]:
    """A switch takes no value, so that none is shown after it."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


class Verb(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _switches_alone(super().get_params(ctx))


class Verbs(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _switches_alone(super().get_params(ctx))


def arrange(app: typer.Typer) -> None:
    """Puts the verbs into their groups and order, and examples under the help of each."""
    panels = {verb: panel for panel, verbs in GROUPS.items() for verb in verbs}
    order = list(panels)

    def name_of(command: Any) -> str:
        return command.name or command.callback.__name__

    for command in app.registered_commands:
        name = name_of(command)
        command.rich_help_panel, command.cls = panels[name], Verb
        examples = GROUPS[panels[name]][name]
        command.epilog = "\n\n".join((f"Example{'s' * (len(examples) > 1)}:", *(one.replace("[", r"\[") for one in examples)))
    for group in app.registered_groups:
        group.rich_help_panel, group.cls = panels[str(group.name)], Verbs
        for command in group.typer_instance.registered_commands if group.typer_instance is not None else ():
            command.cls = Verb
    app.registered_commands.sort(key=lambda command: order.index(name_of(command)))
    app.info.cls = Verbs
