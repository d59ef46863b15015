"""Fuzzed CSV files: each is read, recognised and encoded into finite arrays, or refused by an error of ours."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bayesrule.data import Encoder, fit_target, iterate_table, read_table, recognise_target, separate_target, split
from bayesrule.errors import BayesruleError

FEW, MANY = 200, 2000

NAMES = [
    "a",
    "b",
    "Größe",
    "x y",
    "y",
    "",
    "名前",
    'quo"te',
    "se,parator",
    "new\nline",
    "1",
    "inf",
    "NA",
    "\u200b",
    "🙂",
]
HUGE = ["1e308", "-1e308", "1e-320", "9" * 400, "0x1F", "1_000", "+1.", ".5", "1e99", "-0", "1e400", "１２", "١٢"]
WORDS = [
    "red",
    "Blue",
    "é",
    "🙂🙂",
    "a,b",
    'say "hi"',
    "two\nlines",
    "\t",
    "'",
    "nan",
    "Infinity",
    "-inf",
    "TRUE",
    "NULL",
]
ODD = ["", " ", "?", "NA", "2024-02-30", "1,5", "12:30", "$3", "5%", "\ufeff", "\u2028", "\x0b", "\x85", "x" * 500]


def numbers(rng: random.Random) -> str:
    return repr(rng.gauss(0, 10.0 ** rng.randint(-3, 6)))


CELLS: list[Callable[[random.Random], str]] = [
    numbers,
    lambda rng: str(rng.randint(0, 3)),
    lambda rng: str(rng.randint(-(10**20), 10**20)),
    lambda rng: rng.choice(WORDS),
    lambda rng: rng.choice(["", "NA"]),
    lambda rng: "7",
    lambda rng: rng.choice(ODD),
    lambda rng: rng.choice(HUGE),
    lambda rng: f"id-{rng.getrandbits(64)}",
    lambda rng: rng.choice(["", numbers(rng)]),
    lambda rng: f"c{int(rng.expovariate(0.02))}",
    lambda rng: rng.choice(["1e100", "-1e100", "1e-300", "0"]),
]


def table(rng: random.Random) -> tuple[list[str], list[list[str]]]:
    columns = [
        rng.choices(CELLS, weights=[4, 4, 1, 3, 1, 1, 1, 0.3, 1, 3, 2, 0.5])[0] for _ in range(rng.randint(1, 8))
    ]
    strange = rng.random() < 0.2
    header = [rng.choice(NAMES) if strange else f"column{place}" for place in range(len(columns))]
    rows = rng.choices([0, 1, 2, 3, 10, 12, 40, 300], weights=[1, 1, 1, 1, 4, 8, 20, 12])[0]
    return header, [[cell(rng) for cell in columns] for _ in range(rows)]


def text(rng: random.Random) -> bytes:
    header, rows = table(rng)
    buffer = io.StringIO()
    style = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
    ends, separator = rng.choices(["\n", "\r\n", "\r"], weights=[12, 12, 1])[0], rng.choice(",,,,;\t|")
    writer = csv.writer(buffer, quoting=style, lineterminator=ends, delimiter=separator)
    writer.writerows([header, *rows])
    encoding = rng.choices(["utf-8", "utf-8-sig", "latin-1", "utf-16"], weights=[24, 6, 1, 0.5])[0]
    return buffer.getvalue().encode(encoding, errors="replace")


def insert(content: bytes, rng: random.Random) -> bytes:
    place = rng.randint(0, len(content))
    junk = [
        b"\0",
        b'"',
        b",",
        b"\n",
        b"\r",
        b"\xff",
        b"\xc3",
        b'"""',
        b",,,",
        b"\n\n\n",
        b"inf",
        b"\\",
        rng.randbytes(8),
    ]
    return content[:place] + rng.choice(junk) + content[place:]


def cut(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randint(0, len(content)) for _ in range(2))
    return rng.choice([content[:start], content[start:], content[:start] + content[end:]])


def flip(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content)) if content else 0
    return content[:place] + rng.randbytes(1) + content[place + 1 :]


def repeat_a_line(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    return b"\n".join([*lines, rng.choice(lines)])


def fuzzed(seed: int) -> bytes:
    rng = random.Random(seed)
    if rng.random() < 0.03:
        return rng.choice([b"", b"PAR1", b"PK\x03\x04"]) + rng.randbytes(rng.randint(0, 300))
    content = text(rng)
    for _ in range(rng.choices([0, 1, 2, 5], weights=[12, 4, 2, 1])[0]):
        content = rng.choice([insert, cut, flip, repeat_a_line])(content, rng)
    return content


def use(path: Path, seed: int) -> None:
    """What `fit` and `predict` do with a file; the target is any of its columns."""
    frame = read_table(path)
    name = random.Random(seed).choice([*frame.columns] * 5 + ["nowhere"])
    features, series, _ = separate_target(frame, name)
    task = recognise_target(series).task
    target = fit_target(series, task)
    y = target.encode(series)
    assert np.isfinite(y).all()
    parts = split(len(y), y, task, seed)
    encoder = Encoder.fit(features.iloc[parts.train])
    whole = encoder.encode(features).features
    assert whole.shape == (len(features), len(encoder.feature_names))
    assert whole.dtype == np.float32
    assert np.isfinite(whole).all()
    again = Encoder.from_config(encoder.to_config())
    pieces = [again.encode(piece).features for piece in iterate_table(path, rows=7, kinds=encoder.kinds)]
    known = frame.index.isin(series.index)
    assert np.array_equal(np.concatenate(pieces)[known], whole)
    predict_damaged(again, path, random.Random(seed))


def predict_damaged(encoder: Encoder, path: Path, rng: random.Random) -> None:
    """The same file with one more fault in it, for prediction: refused, or encoded into finite features."""
    path.write_bytes(rng.choice([insert, cut, flip, repeat_a_line])(path.read_bytes(), rng))
    with suppress(BayesruleError):
        for piece in iterate_table(path, rows=7, kinds=encoder.kinds):
            assert np.isfinite(encoder.encode(piece).features).all()


def outcomes(seeds: range, folder: Path) -> Counter[str]:
    seen: Counter[str] = Counter()
    path = folder / "data.csv"
    for seed in seeds:
        path.write_bytes(fuzzed(seed))
        try:
            use(path, seed)
        except BayesruleError as error:
            seen[type(error).__name__] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed} fails with {type(error).__name__}") from error
        else:
            seen["used"] += 1
    return seen


def test_few_fuzzed_files(tmp_path: Path) -> None:
    seen = outcomes(range(FEW), tmp_path)
    assert seen.total() == FEW
    assert min(seen["used"], seen["BadTable"]) > FEW // 5  # the fuzzer is neither too tame nor too wild


@pytest.mark.slow
def test_many_fuzzed_files(tmp_path: Path) -> None:
    seen = outcomes(range(FEW, FEW + MANY), tmp_path)
    assert min(seen["used"], seen["BadTable"]) > MANY // 5
