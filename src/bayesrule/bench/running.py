"""A whole benchmark: every model, batch and mode, and in each of these all methods in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch

from bayesrule.bench.allocator import keep_memory
from bayesrule.bench.claims import claims_of
from bayesrule.bench.floor import work_of
from bayesrule.bench.job import ADAM, Contender, Job, Mode
from bayesrule.bench.memory import out_of_memory, peak_bytes
from bayesrule.bench.methods import REFERENCE, method
from bayesrule.bench.models import Model, model
from bayesrule.bench.peers import PEERS
from bayesrule.bench.request import Request
from bayesrule.bench.results import Row, result_of, rows_of
from bayesrule.bench.timing import ratio_of_medians
from bayesrule.errors import InvalidArgument
from bayesrule.kernels.native import is_there
from bayesrule.timing import Times, Turn, interleaved, seconds, synchronize, wall_clock

MIB = 2**20
WARM_UP = 2
PREDICT_ROUNDS = 3
LEAST_STEPS, RECORDED_STEPS = 2, 10
"""Of a turn: a step that follows its own kind, as in training, counts as much as one that follows another method's.
Recorded steps are started ahead, and no training waits for each of them to end."""
LONGEST = 200
"""Characters of an error that are kept."""
Told = Callable[[str, int, int], None]
"""What is being done, and how many of how many parts are done."""
Found = tuple[list[Row], list[str]]
"""Rows, and why some methods have none."""


def bench(request: Request, command: str, told: Told = lambda what, done, parts: None) -> dict[str, Any]:
    """Everything that `result.json` holds."""
    started = time.perf_counter()
    names = tuple(dict.fromkeys((REFERENCE, *request.methods)))
    for name in names:
        method(name)
    if request.keep_memory:
        keep_memory()
    skipped = [reason for name in names if name in PEERS and (reason := PEERS[name].absent()) is not None]
    present = [name for name in names if name not in PEERS or PEERS[name].absent() is None]
    parts = [(f"{known.name}, batch {batch}, {mode.name}", partial(steps, known, batch, mode, present, request))
             for known, batch, mode in request.cases()]  # fmt: skip
    if request.inputs:
        drawn = [known for known in map(model, request.models) if known.drawn_at]
        parts += [(f"{known.name}, predictions", partial(predictions, known, present, request)) for known in drawn]
    rows: list[Row] = []
    too_large: list[str] = []
    interrupted = {}
    for number, (words, part) in enumerate(parts):
        told(words, number, len(parts))
        _tidy(torch.device(request.device))
        try:
            found, refused = part()
        except KeyboardInterrupt:
            if not rows:
                raise
            interrupted = {"interrupted": f"after {number} of {len(parts)} parts"}
            break
        except Exception as error:  # others' results are not lost with it
            if not out_of_memory(error):
                raise
            found, refused = [], [_refusal(f"{words}: no memory", error)]
            too_large += refused
        rows, skipped = rows + found, skipped + refused
    if too_large and len(too_large) == len(parts):
        raise InvalidArgument(
            "There is no memory here for what is to be measured", got=too_large[0],
            remedy="Name a smaller model, such as dense-1024, a smaller --batch, or fewer --inputs.",
        )  # fmt: skip
    if not interrupted:
        told("done", len(parts), len(parts))
    result = result_of(
        f"bench/{'cuda' if request.device.startswith('cuda') else 'cpu'}", command, request.device,
        time.perf_counter() - started, rows, skipped, seed=request.seed, packages=PEERS,
    )  # fmt: skip
    return {
        **result,
        **interrupted,
        "date": datetime.now(UTC).date().isoformat(),
        "notes": [*_notes(result, request), *(f"Interrupted {when}." for when in interrupted.values())],
        "claims": _claims(result),
    }


def steps(known: Model, batch: int, mode: Mode, names: Sequence[str], request: Request) -> Found:
    """Training steps of one model at one batch in one mode."""
    case = f"{known.name}, batch {batch}"
    contenders, values, skipped = _contenders(known, batch, mode, names, request)
    for name, (job, contender) in list(contenders.items()):
        try:
            values[name] |= once(job, contender)
        except Exception as error:  # other libraries raise anything, and so does a device without memory
            skipped.append(_refusal(name, error))
            del contenders[name], values[name]
    least = RECORDED_STEPS if mode.captured else LEAST_STEPS
    turns = {name: Turn(each.step, max(each.period, least))
             for name, (_, each) in contenders.items() if each.step is not None}  # fmt: skip
    times = interleaved(turns, wall_clock(torch.device(request.device)), rounds=request.rounds, budget=request.seconds)
    _compare(values, times, request, "step")
    reference = values.get(REFERENCE, {}).get("peak MiB")
    for each in values.values():
        if reference is not None and "peak MiB" in each:
            each["memory ratio"] = each["peak MiB"] / reference
    return _rows(case, mode, values, times), [f"{case}, {mode.name}: {words}" for words in skipped]


def once(job: Job, contender: Contender) -> dict[str, float]:
    """What is measured only once: the first step, memory, and the work in a step."""
    if contender.step is None:
        return {}
    values = {"first step ms": 1e3 * seconds(Turn(contender.step), wall_clock(job.device))}
    for _ in range(WARM_UP):
        contender.step()
    if not job.mode.captured:  # whose memory is a pool of its own
        held = [*contender.state(), job.x, job.y]
        values["peak MiB"] = peak_bytes(held, contender.step, job.device) / MIB
    if job.mode.plain:
        work = work_of(contender.step, contender.state(), (job.x, job.y))
        values |= {
            "GFLOP": work.flops / 1e9, "MiB moved": work.moved_bytes / MIB, "MiB at least": work.least_bytes / MIB,
            "million drawn": work.drawn / 1e6,
        }  # fmt: skip
    return values


def predictions(known: Model, names: Sequence[str], request: Request) -> Found:
    """Predictions of one model; those of the point estimate are as many forward passes as there are draws."""
    case, device = f"{known.name}, {request.inputs} inputs at {request.draws} draws", torch.device(request.device)
    contenders, values, skipped = _contenders(known, request.batches[0], Mode(), names, request)
    x = known.inputs(request.inputs).to(device)
    turns = {}
    for name, (_, contender) in contenders.items():
        work = partial(contender.outputs, x, request.draws)
        try:
            values[name] = {"predict peak MiB": peak_bytes((), work, device) / MIB}
        except Exception as error:  # as above
            skipped.append(_refusal(name, error))
            continue
        turns[name] = Turn(work)
    clock = wall_clock(device)
    times = interleaved(turns, clock, rounds=request.rounds, budget=request.seconds, least=PREDICT_ROUNDS)
    values = {name: values[name] for name in times}
    _compare(values, times, request, "predict")
    return _rows(case, Mode(), values, times), [f"{case}: {words}" for words in skipped]


def _contenders(
    known: Model, batch: int, mode: Mode, names: Sequence[str], request: Request
) -> tuple[dict[str, tuple[Job, Contender]], dict[str, dict[str, float]], list[str]]:
    """All methods on equal networks and one batch, how long each took to set up, and why some are missing."""
    device = torch.device(request.device)
    torch.manual_seed(request.seed)
    x, y = known.inputs(batch).to(device), known.targets(batch).to(device)
    contenders: dict[str, tuple[Job, Contender]] = {}
    values: dict[str, dict[str, float]] = {}
    skipped = []
    for name in names:
        torch.manual_seed(request.seed)
        try:
            job = Job(known, known.network().to(device), x, y, mode)
            started = time.perf_counter()
            contenders[name] = job, method(name).build(job)
        except Exception as error:  # as above
            if not contenders and out_of_memory(error):  # then no method's network fits
                raise
            skipped.append(_refusal(name, error))
            continue
        synchronize(device)
        values[name] = {"set-up ms": 1e3 * (time.perf_counter() - started)}
    return contenders, values, skipped


def _refusal(name: str, error: Exception) -> str:
    return f"{name} ({type(error).__name__}: {' '.join(str(error).split())[:LONGEST]})"


def _rows(case: str, mode: Mode, values: Mapping[str, dict[str, float]], times: Mapping[str, Times]) -> list[Row]:
    return [
        row for name, each in values.items() for row in rows_of(case, name, len(times.get(name, ())), each, mode.name)
    ]


def _compare(values: dict[str, dict[str, float]], times: Mapping[str, Times], request: Request, what: str) -> None:
    """Median milliseconds, and the ratio to the point estimate's with its interval."""
    generator = np.random.default_rng(request.seed)
    for name, taken in times.items():
        values[name][f"{what} ms"] = 1e3 * float(np.median(taken))
        if REFERENCE in times:
            ratio = ratio_of_medians(taken, times[REFERENCE], generator)
            values[name] |= {
                f"{what} ratio": ratio.value, f"{what} ratio low": ratio.low, f"{what} ratio high": ratio.high,
            }  # fmt: skip


def _tidy(device: torch.device) -> None:
    torch.compiler.reset()  # forget what was compiled, which would keep the networks alive
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _claims(result: Mapping[str, Any]) -> list[dict[str, str]]:
    return claims_of(result["rows"], "cuda" if result["experiment"].endswith("cuda") else "cpu")


def _notes(result: Mapping[str, Any], request: Request) -> list[str]:
    """When and with what; the optimizer that all share."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    options = ", ".join(f"{key}={value}" for key, value in ADAM.items())
    notes = [
        f"Measured on {datetime.now(UTC).date().isoformat()} with {versions}.",
        f"Every method that takes an optimizer of torch.optim has Adam({options}).",
    ]
    if result["device"].startswith("cpu"):
        notes.append(f"This library's compiled code for a CPU: {'in use' if is_there() else 'not in use'}.")
    if request.keep_memory:
        notes.append("The C library kept the memory that was freed.")
    return notes
