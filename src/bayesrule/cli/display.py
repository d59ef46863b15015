"""What is shown while training runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from bayesrule.report.numbers import duration, number
from bayesrule.train.member_loop import Progress as Standing

SAID = 5
"""Lines about one training where nothing can be redrawn."""
OnProgress = Callable[[Standing], None]


@contextmanager
def live(console: Console, title: str) -> Iterator[OnProgress]:
    """A bar with the scores beside it on a terminal; a few plain lines elsewhere."""
    if not console.is_terminal:
        yield _Lines(console, title)
        return
    width = 24 if console.width >= 100 else 12
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=width), TextColumn("{task.fields[scores]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Bar(bar, bar.add_task(title, total=None, scores=""))


def scores(standing: Standing) -> str:
    """NLL, KL, validation score and time left."""
    kl = f"  KL/N {number(standing.kl_per_example)}" if standing.kl_per_example else ""  # a point estimate has none
    valid = "" if standing.valid_nll is None else f"  validation {number(standing.valid_nll)}"
    return f"NLL {number(standing.nll)}{kl}{valid}  {duration(standing.seconds_left)} left"


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self.bar, self.task = bar, task

    def __call__(self, standing: Standing) -> None:
        self.bar.update(self.task, completed=standing.step, total=standing.steps, scores=scores(standing))


class _Lines:
    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title, self.said = console, title, 0

    def __call__(self, standing: Standing) -> None:
        part = SAID * standing.step // standing.steps
        if part > self.said:
            self.said = part
            self.console.print(f"{self.title}: step {standing.step} of {standing.steps}  {scores(standing)}")
