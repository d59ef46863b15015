"""Takes what searches chose into `settings.json`, where the tables find their validated settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesrule.errors import InvalidArgument
from bayesrule.experiments.nng import choices
from bayesrule.experiments.nng.choices import DEEP_SEARCH, ONE_LAYER_SEARCH, merged, with_choices

app = typer.Typer(add_completion=False)


def keep(result: Path, settings: Path) -> list[str]:
    """Write the settings anew, given a search's `result.json`.

    Returns:
        What changed, a line for each choice.
    """
    if not result.is_file():
        raise InvalidArgument(
            "Choices are taken from the result.json of a search", got=f"{result}, which is no file",
            remedy=f"bayesrule reproduce {ONE_LAYER_SEARCH} --preset paper --data DIR --out OUT writes it into OUT.",
        )  # fmt: skip
    read, stored = _read(result), _read(settings) if settings.exists() else {}
    found = {name: read.get(name) for name in ("experiment", "preset")}
    if found["experiment"] not in (ONE_LAYER_SEARCH, DEEP_SEARCH) or found["preset"] != "paper":
        raise InvalidArgument(
            f"Choices are taken from {ONE_LAYER_SEARCH} or {DEEP_SEARCH} at preset paper", got=found,
            remedy="Other experiments mark no choices; short runs and made-up data make none that tables could use.",
        )  # fmt: skip
    if not with_choices(read["rows"]):
        raise InvalidArgument(
            "Choices are the points that a search marks", got=f"{result}, which marks none",
            remedy="Take the result.json of a run that has ended.",
        )  # fmt: skip
    after = _in_order_of(stored, merged(stored, read))
    settings.write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    before = dict(_leaves(stored))
    return [f"{name}: {before.get(name)} → {value}" for name, value in _leaves(after) if before.get(name) != value]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(
            "Results and settings are files of JSON", got=f"{path}: {error}", remedy="Nothing was written."
        ) from error
    if not isinstance(found, dict):
        raise InvalidArgument("Results and settings are objects of JSON", got=f"{path}: {type(found).__name__}")
    return found


def _in_order_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a tree in the order they had, the new ones last: what did not change is where it was."""
    names = [*(name for name in before if name in after), *(name for name in after if name not in before)]
    both = {name: (before.get(name), after[name]) for name in names}
    return {name: _in_order_of(old, new) if isinstance(old, Mapping) and isinstance(new, Mapping) else new
            for name, (old, new) in both.items()}  # fmt: skip


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Choices by data set, method and field."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name} / ")
        else:
            yield f"{path}{name}", value


@app.command()
def main(
    results: Annotated[list[Path], typer.Argument(help="result.json of searches, the later ones over the earlier.")],
    settings: Annotated[Path, typer.Option(help="The file to write; by default the package's own.")] = choices.FILE,
) -> None:
    """Take the choices of searches into settings.json. Methods that were not searched keep theirs.

    python -m bayesrule.experiments.nng.keep_choices results/nng/search/result.json
    """
    for result in results:
        try:
            changed = keep(result, settings)
        except InvalidArgument as refused:
            typer.echo(str(refused), err=True)
            raise typer.Exit(2) from refused
        typer.echo("\n".join([*changed, f"{len(changed)} choices of {result} are new in {settings}"]))


if __name__ == "__main__":
    app()
