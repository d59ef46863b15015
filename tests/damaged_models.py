"""Damaged model folders through the command: refused or harmless, without a traceback, and never half a result.

A program of its own, as ``fuzzed_commands.py`` is: ``python tests/damaged_models.py FIRST_SEED COUNT``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bayesrule.nn.model_folder import read_folder, write_folder
from command_line import FAST, bayesrule, classes, files, numbers, write
from fuzzed_commands import checked

VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3.5, 1e308, -1e-9, "", "x", "Normal", "\0", [], {}, [[]], [None], ["a"],
    {"name": "x"},
]  # fmt: skip
NAMES = ["model.safetensors", "config.json", "metrics.json", "report.html"]
ESSENTIAL = NAMES[:2]


def pick(rng: random.Random, folder: Path) -> Path:
    return folder / rng.choice(ESSENTIAL if rng.random() < 0.9 else NAMES)


def flip_bytes(folder: Path, rng: random.Random) -> None:
    path = pick(rng, folder)
    content = bytearray(path.read_bytes())
    # The header, and within it the configuration, is the first part of the tensors' file.
    reach = len(content) if rng.random() < 0.5 else min(len(content), 4000)
    for _ in range(rng.choice([1, 1, 2, 20])):
        content[rng.randrange(reach)] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(folder: Path, rng: random.Random) -> None:
    path = pick(rng, folder)
    os.truncate(path, rng.choice([0, 1, 7, 8, 9, rng.randrange(path.stat().st_size)]))


def lengthen(folder: Path, rng: random.Random) -> None:
    with pick(rng, folder).open("ab") as file:
        file.write(rng.randbytes(rng.choice([1, 100])))


def overwrite(folder: Path, rng: random.Random) -> None:
    foreign = [
        rng.randbytes(200),
        b"\0" * 64,
        b"{}",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"[" * 100_000,
        b"\xff\xfe{",
        b"PK\x03\x04",
    ]
    pick(rng, folder).write_bytes(rng.choice(foreign))


def remove(folder: Path, rng: random.Random) -> None:
    pick(rng, folder).unlink()


def make_folder(folder: Path, rng: random.Random) -> None:
    path = pick(rng, folder)
    path.unlink()
    path.mkdir()


def link_nowhere(folder: Path, rng: random.Random) -> None:
    path = pick(rng, folder)
    path.unlink()
    path.symlink_to(folder / rng.choice(["nowhere", path.name]))


def add_strangers(folder: Path, rng: random.Random) -> None:
    (folder / rng.choice(["notes.txt", ".hidden", "model.bin"])).write_bytes(rng.randbytes(50))
    (folder / "sub").mkdir()


def places(config: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of everything in a tree of JSON but its root."""
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


def spoil(config: Any, rng: random.Random) -> None:
    """Remove, replace or rename one entry of a tree of JSON."""
    found = places(config)
    # A level at random first: most entries lie deep, where each is one of many that are alike.
    depth = rng.choice(sorted({len(place) for place in found}))
    *path, last = rng.choice([place for place in found if len(place) == depth])
    parent = config
    for key in path:
        parent = parent[key]
    what = rng.random()
    if what < 0.3:
        del parent[last]
    elif what < 0.85 or isinstance(parent, list):
        parent[last] = rng.choice(VALUES)
    else:
        parent[f"{last}_"] = parent.pop(last)


def spoil_text(folder: Path, rng: random.Random) -> None:
    """In ``config.json`` alone, which then differs from what the tensors carry."""
    config = json.loads((folder / "config.json").read_text())
    spoil(config, rng)
    (folder / "config.json").write_text(json.dumps(config))


def spoil_both(folder: Path, rng: random.Random) -> None:
    """A folder that is whole by its digest and makes no sense."""
    config, tensors = read_folder(folder, "tabular")
    kept = {key: value for key, value in config.items() if key not in ("format", "version", "kind")}
    spoil(kept, rng)
    write_folder(folder, kept, tensors, "tabular")


def spoil_tensors(folder: Path, rng: random.Random) -> None:
    """Whole by its digest, with other tensors."""
    config, tensors = read_folder(folder, "tabular")
    kept = {key: value for key, value in config.items() if key not in ("format", "version", "kind")}
    name = rng.choice(sorted(tensors))
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda tensor: tensor.double(), lambda tensor: tensor.to(torch.int8), lambda tensor: tensor.flatten()[:-1],
        lambda tensor: tensor.flatten(), lambda tensor: tensor * torch.nan, lambda tensor: tensor.new_zeros(0),
    ]  # fmt: skip
    if rng.random() < 0.2:
        tensors["another"] = tensors.pop(name)
    else:
        tensors[name] = rng.choice(changes)(tensors[name])
    write_folder(folder, kept, tensors, "tabular")


HARMS = [
    flip_bytes, cut, lengthen, overwrite, remove, make_folder, link_nowhere, add_strangers, spoil_text,
    spoil_both, spoil_both, spoil_both, spoil_tensors,
]  # fmt: skip
CONSISTENT = {spoil_both, spoil_tensors}
"""Harms that leave a folder whole by its digest: what it then predicts is what it says."""


def state(folder: Path) -> dict[str, object]:
    """Everything in a folder, links and folders included."""
    found = {path: path.is_symlink() or (path.read_bytes() if path.is_file() else None) for path in folder.rglob("*")}
    return {str(path.relative_to(folder)): content for path, content in found.items()}


def use(folder: Path, right: Path, seed: int) -> str:
    """Damage a copy of a model, predict with it and compress it; says how, and with which exit code."""
    rng = random.Random(seed)
    harm, work = rng.choice(HARMS), folder / "work"
    work.mkdir()
    model, out, lean = work / "model", work / "out.csv", work / "lean"
    shutil.copytree(right / "model", model, ignore=shutil.ignore_patterns("tensorboard"))
    harm(model, rng)
    before = state(model)
    ran = [
        bayesrule("predict", model, right / "data.csv", "-o", out),
        bayesrule("compress", model, "--rank", 1, "-o", lean, "--quiet"),
    ]
    codes = [checked(each, seed) for each in ran]
    assert state(model) == before, seed
    assert {entry.name for entry in work.iterdir()} == {
        "model", *(["out.csv"] if codes[0] == 0 else []), *(["lean"] if codes[1] == 0 else []),
    }, (seed, harm)  # fmt: skip
    if codes[0] == 0 and harm not in CONSISTENT:  # what was damaged had no part in it
        assert out.read_bytes() == (right / "out.csv").read_bytes(), (seed, harm)
    if codes[1] == 0:
        assert set(files(lean)) == {"model.safetensors", "config.json", "metrics.json"}, (seed, harm)
    shutil.rmtree(work)
    return f"{harm.__name__} {codes[0]}"


def main(first: int, count: int) -> None:
    torch.set_num_threads(1)
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        right = [Path(name) / kind for kind in ("classes", "numbers")]
        for folder, frame in zip(right, (classes(), numbers()), strict=True):
            folder.mkdir()
            data = write(frame, folder / "data.csv")
            assert bayesrule("fit", data, *FAST, "--quiet", "--out", folder / "model").code == 0
            assert bayesrule("predict", folder / "model", data, "-o", folder / "out.csv").code == 0
        for seed in range(first, first + count):
            seen[use(Path(name), right[seed % 2], seed)] += 1
    print(count, "folders:", ", ".join(f"{what}: {times}" for what, times in sorted(seen.items())))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
