"""Elements of an SVG drawing, escaped. Colours come from the page's style sheet, by class."""

from __future__ import annotations

from markupsafe import Markup, escape

Attribute = str | float


def element(tag: str, *children: str, **attributes: Attribute) -> Markup:
    """One element. ``class_`` is written ``class``, ``text_anchor`` ``text-anchor``; plain text is escaped.

    >>> element("text", "a < b", x=1.0, class_="tick")
    Markup('<text x="1" class="tick">a &lt; b</text>')
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _plain(value))
        for name, value in attributes.items()
    )
    return Markup("<{}{}>{}</{}>").format(Markup(tag), written, Markup("").join(map(escape, children)), Markup(tag))


def _plain(value: Attribute) -> str:
    return value if isinstance(value, str) else f"{round(value, 2) + 0:g}"  # + 0 turns -0 into 0


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rectangle(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    """A rectangle; its title appears under the pointer."""
    inner = (element("title", title),) if title else ()
    return element("rect", *inner, x=x, y=y, width=width, height=height, class_=class_)


def circle(x: float, y: float, radius: float, class_: str, title: str = "") -> Markup:
    """A dot; its title appears under the pointer."""
    inner = (element("title", title),) if title else ()
    return element("circle", *inner, cx=x, cy=y, r=radius, class_=class_)


def path(points: list[tuple[float, float]], class_: str) -> Markup:
    """A line through points."""
    steps = " ".join(f"{'L' if index else 'M'}{_plain(x)} {_plain(y)}" for index, (x, y) in enumerate(points))
    return element("path", d=steps, class_=class_)


def text(x: float, y: float, words: str, class_: str, anchor: str = "middle", **more: Attribute) -> Markup:
    """Words at a place."""
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor, **more)


def drawing(width: float, height: float, description: str, *parts: str) -> Markup:
    """A picture that scales with its column and has words for those who cannot see it."""
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=description)
