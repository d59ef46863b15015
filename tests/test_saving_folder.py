"""What a model folder holds, and what is not written into one."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import bayesrule as br
from bayesrule.errors import Unsupported
from bayesrule.nn.model_folder import write_folder
from round_trips import check_equal, inputs, mlp, moved


def test_a_loaded_model_does_not_depend_on_the_file(tmp_path: Path) -> None:
    net = nn.Linear(5, 3).double()
    bnn = moved(br.bayesianize(net))
    loaded = br.load(br.save(bnn, tmp_path), into=net)
    with (tmp_path / "model.safetensors").open("r+b") as file:  # in place: no new file, as a rename would make
        file.write(bytes(1000))
        file.truncate()
    check_equal(bnn, loaded, inputs(5))


def test_a_folder_holds_json_and_safetensors_for_everyone_to_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = br.save(br.bayesianize(mlp(), prior=br.Normal(0.1)), tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert folder == tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == "bayesrule-model"
    assert config["prior"]["0"] == {"name": "Normal", "std": 0.1, "mean": 0.0}
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["config"]) == config
        assert "module.0.homes.weight.posterior.mean" in file.keys()  # noqa: SIM118, not a dict


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was used")

    net = mlp()
    bnn = br.bayesianize(net)
    for module, names in (
        (pickle, ("dump", "dumps", "load", "loads", "Pickler", "Unpickler")),
        (torch, ("save", "load")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refused)
    br.load(br.save(bnn, tmp_path), into=net)
    sources = Path(br.__file__).parent.rglob("*.py")
    assert not [path.name for path in sources if re.search(r"torch\.load|import pickle|from pickle", path.read_text())]


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    class KTied(br.KTied):
        """Not the library's, in spite of its name."""

    class Stateful(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(Unsupported, match="KTied cannot be saved: it is not of bayesrule"):
        br.save(br.bayesianize(nn.Linear(5, 3), KTied(2)), tmp_path / "m")
    with pytest.raises(Unsupported, match=r"keeps tensors only.*0._extra_state"):
        br.save(br.bayesianize(nn.Sequential(Stateful(5, 3))), tmp_path / "m")
    assert not (tmp_path / "m").exists()


SAVES_AGAIN = """
import sys, torch, bayesrule as br
net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
br.save(br.load(sys.argv[1], into=net), sys.argv[2])
"""


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    bnn = br.bayesianize(net, br.KTied(2), br.GroupARD("row"), likelihood=br.Gaussian(0.1))
    files = [br.save(bnn, tmp_path / str(number)) / "model.safetensors" for number in range(8)]
    assert len({file.read_bytes() for file in files}) == 1  # safetensors' own order of two entries varies by chance
    folders = tmp_path / "0", tmp_path / "other process"
    subprocess.run([sys.executable, "-c", SAVES_AGAIN, *folders], check=True, env={**os.environ, "PYTHONHASHSEED": "7"})
    for name in ("model.safetensors", "config.json"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second, name


@pytest.mark.parametrize("name", ["weight", "gewichtsname-größer"])
def test_tensors_are_aligned(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, {"note": "größer"}, {name: torch.arange(3.0)})
    content = (tmp_path / "model.safetensors").read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor(name), torch.arange(3.0))
        assert json.loads(file.metadata()["config"])["note"] == "größer"


def test_a_model_can_be_written_over_another(tmp_path: Path) -> None:
    br.save(br.bayesianize(mlp()), tmp_path)
    (tmp_path / "metrics.json").write_text("{}")
    conv = br.bayesianize(nn.Conv2d(2, 3, 3), br.MatrixNormal(0.1), likelihood=br.Poisson())
    br.save(conv, tmp_path)
    check_equal(conv, br.load(tmp_path, into=nn.Conv2d(2, 3, 3)), inputs(2, 5, 5, dtype=torch.float32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "metrics.json", "model.safetensors"]
