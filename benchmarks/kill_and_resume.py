"""Kill training at random moments, with a signal nothing can catch, and go on: the end must be the same bit for bit.

Every run is a process of its own. It is killed after a random part of the time that a whole run takes, and started
again with the checkpoint it left, until it comes to its end; then the next run begins, until there were enough kills.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from bayesrule.nn.model_folder import write_atomically
from bayesrule.train.fit import CHECKPOINT
from bayesrule.train.members import Settings, Task, train_members

TASKS: tuple[Task, ...] = ("regression", "classification")
DIGEST = "digest"
ROWS, FEATURES, CLASSES = 40, 4, 3


def train(folder: Path, task: Task, steps: int) -> str:
    """Train, from the folder's checkpoint if it has one; a digest of all that came out, times left out."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    number = x[:, :1].sin() + 0.3 * torch.randn(ROWS, 1, generator=generator)
    y = number if task == "regression" else torch.bucketize(number[:, 0], torch.tensor([-0.3, 0.3]))
    settings = Settings(hidden=(8,), folds=2, steps=steps, draws=12)
    members, history = train_members(x, y, task, settings, outputs=CLASSES, checkpoint=folder / CHECKPOINT, resume=True)
    digest = hashlib.blake2b(digest_size=16)
    for entry in history:
        digest.update(repr([value for name, value in entry.items() if name != "seconds"]).encode())
    for tensor in [*members.state_dict().values(), members.predictive(x).outputs]:
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def start(folder: Path, task: Task, steps: int) -> int:
    """A process that trains; its id."""
    if process := os.fork():
        return process
    try:
        write_atomically(folder / DIGEST, train(folder, task, steps).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def finish(process: int) -> bool:
    """Wait for a process: whether it came to its end. One that failed ends this one too."""
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"a resumed run failed with status {status}")
    return status == 0


def survive(folder: Path, task: Task, steps: int, longest: float, kills_left: int, chance: random.Random) -> int:
    """Kill a run again and again until it comes to its end, or to the last kill; how often that was."""
    kills = 0
    while True:
        process = start(folder, task, steps)
        if kills < kills_left:
            time.sleep(chance.uniform(0, longest))
            os.kill(process, signal.SIGKILL)
        if finish(process):
            return kills
        kills += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="how many (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="of training (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1)])  # the first optimizer imports much: once here, for all processes
    chance = random.Random(options.seed)
    kills, runs = 0, 0
    with tempfile.TemporaryDirectory() as root:
        expected, seconds = {}, {}
        for task in TASKS:
            folder = Path(root) / task
            folder.mkdir()
            started = time.perf_counter()
            finish(start(folder, task, options.steps))
            expected[task], seconds[task] = (folder / DIGEST).read_text(), time.perf_counter() - started
        while kills < options.kills:
            task = TASKS[runs % len(TASKS)]
            folder = Path(root) / str(runs)
            folder.mkdir()
            kills += survive(folder, task, options.steps, seconds[task], options.kills - kills, chance)
            runs += 1
            if (folder / DIGEST).read_text() != expected[task]:
                sys.exit(f"run {runs} ({task}) ended otherwise than an uninterrupted one")
    print(f"{kills} kills in {runs} runs: every one resumed, and every run ended as an uninterrupted one, bit for bit")


if __name__ == "__main__":
    main()
