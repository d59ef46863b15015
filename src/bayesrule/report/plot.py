"""The frame of a chart, and a chart with its words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from bayesrule.report.axis import LARGEST, Axis
from bayesrule.report.numbers import tick_number
from bayesrule.report.svg import drawing, element, line, path, text

WIDTH = 420.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 398.0, 34.0, 264.0
BELOW = 50.0  # for the ticks and the name of the horizontal axis


@dataclass(frozen=True)
class Figure:
    """A drawing with title, legend and caption; a legend's entry names the class that colours its mark."""

    title: str
    picture: Markup
    caption: str
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Plot:
    """Two axes."""

    x: Axis
    y: Axis

    def frame(
        self,
        x_label: str,
        y_label: str,
        x_words: Callable[[float], str] = tick_number,
        y_words: Callable[[float], str] = tick_number,
    ) -> Markup:
        """Grid lines, tick labels and the names of the axes."""
        rows = [
            line(self.x.start, self.y.place(tick), self.x.end, self.y.place(tick), "grid")
            + text(self.x.start - 7, self.y.place(tick) + 4, y_words(tick), "tick", "end")
            for tick in self.y.ticks()
        ]
        columns = [text(self.x.place(tick), self.y.start + 17, x_words(tick), "tick") for tick in self.x.ticks()]
        labels = [
            text((self.x.start + self.x.end) / 2, self.y.start + 40, x_label, "label"),
            text(0, self.y.end - 18, y_label, "label", "start"),
        ]
        base = line(self.x.start, self.y.start, self.x.end, self.y.start, "axis")
        return element("g", *rows, *columns, *labels, base)

    def curve(self, points: Iterable[tuple[float, float]], class_: str) -> Markup:
        """A line through the points, interrupted where one cannot be drawn."""
        runs: list[list[tuple[float, float]]] = [[]]
        for x, y in points:
            if abs(y) < LARGEST:
                runs[-1].append((self.x.place(x), self.y.place(y)))
            elif runs[-1]:
                runs.append([])
        drawn = [path(run, class_) for run in runs if len(run) > 1]
        dots = [
            element("circle", cx=x, cy=y, r=3.0, class_=f"{class_} dot")
            for run in runs
            if len(run) == 1
            for x, y in run
        ]
        return element("g", *drawn, *dots)

    def draw(self, description: str, *parts: str) -> Markup:
        """The finished drawing."""
        return drawing(WIDTH, self.y.start + BELOW, description, *parts)


def standard_plot(
    x: tuple[float, float], y: tuple[float, float], *, log_y: bool = False, bottom: float = BOTTOM
) -> Plot:
    """The usual frame around values between the ends given."""
    return Plot(Axis(*x, LEFT, RIGHT), Axis(*y, bottom, TOP, log_y))
