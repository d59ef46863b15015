"""The repository keeps its own rules: one pin, one version, small files, nothing that belongs to one machine."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jaxtyping
import pytest
import torch
from packaging.requirements import Requirement

import bayesrule as br
from bayesrule.posteriors import (
    CovarianceOperator,
    Family,
    GaussianPosterior,
    KTiedCovariance,
    Posterior,
    RestrictedCovariance,
)

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST_FILE = 300


def requirements() -> list[Requirement]:
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    return [Requirement(line) for group in groups for line in group]


def own_files() -> list[Path]:
    """Every text file of the project: tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    texts = [ROOT / name for name in listing.stdout.splitlines() if not name.endswith((".png", ".npz", ".safetensors"))]
    return [path for path in texts if path.is_file()]


def test_the_pin_is_one_the_package_supports() -> None:
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in "#"]
    assert [pin.name for pin in pins] == ["torch"]
    (pinned,) = (specifier.version for specifier in pins[0].specifier)
    assert str(pins[0].specifier) == f"=={pinned}"
    (supported,) = (requirement for requirement in requirements() if requirement.name == "torch")
    assert supported.specifier.contains(pinned)


def test_nothing_asks_for_torchvision() -> None:
    assert "torchvision" not in {requirement.name for requirement in requirements()}
    assert not [path for path in SOURCES if re.search(r"^\s*(import|from) torchvision", path.read_text(), re.M)]


def test_every_floor_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    bare = [line for line in text.splitlines() if re.match(r'\s*"[\w-]+[<>=]', line) and "#" not in line]
    assert not bare


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert br.__version__ == version == importlib.metadata.version("bayesrule")
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_the_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"


def test_the_package_is_typed() -> None:
    assert (ROOT / "src" / "bayesrule" / "py.typed").exists()


def test_nothing_belongs_to_one_machine() -> None:
    absolute = r"(?<![\w.:/<-])/(?:home|root|work|Users|opt|mnt|srv|var/tmp)/\w"
    registry = r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|anaconda\.org"
    bad = re.compile(f"{absolute}|{registry}")
    hits = [f"{path.relative_to(ROOT)}: {hit[0]}" for path in own_files() if (hit := bad.search(path.read_text()))]
    assert not hits


def test_files_are_short() -> None:
    scripts = [path for path in own_files() if path.suffix == ".py"]
    assert scripts
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in scripts}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


def test_house_rules_of_the_source() -> None:
    assert SOURCES
    for path in SOURCES:
        assert path.stem not in {"utils", "helpers", "common", "misc"}, path
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Assert), f"{path}:{node.lineno} checks input by assert"
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            assert called != "hasattr", f"{path}:{node.lineno} probes by hasattr"


def test_the_design_draws_the_layers_that_are_enforced() -> None:
    (contract,) = PROJECT["tool"]["importlinter"]["contracts"]
    enforced = [re.sub(r"[()]", "", layer) for layer in contract["layers"]]
    (drawing,) = re.findall(r"^```layers\n(.*?)^```$", (ROOT / "docs" / "design.md").read_text(), re.M | re.S)
    drawn = [re.split(r"\s{2,}", line)[0] for line in drawing.splitlines()]
    assert drawn == enforced


def test_every_family_has_a_page() -> None:
    kinds = [
        kind
        for kind in vars(sys.modules["bayesrule.posteriors"]).values()
        if isinstance(kind, type) and not inspect.isabstract(kind)
    ]
    structures = {kind for kind in kinds if issubclass(kind, CovarianceOperator | Posterior)}
    # A page and the module it describes share their name; these two are parts of every family, not families.
    modules = {kind.__module__.rpartition(".")[2] for kind in structures - {GaussianPosterior, RestrictedCovariance}}
    assert modules == {page.stem for page in (ROOT / "docs" / "families").glob("*.md")}


def test_every_recipe_is_named_on_its_page() -> None:
    recipes = [kind for kind in vars(br).values() if isinstance(kind, type) and issubclass(kind, Family)]
    assert recipes
    for recipe in recipes:
        page = ROOT / "docs" / "families" / f"{recipe.__module__.rpartition('.')[2]}.md"
        assert f"br.{recipe.__name__}(" in page.read_text()


@pytest.mark.skipif(os.environ.get("BAYESRULE_SHAPE_CHECKS") == "0", reason="shape checks are switched off")
def test_shapes_are_checked_under_test() -> None:
    covariance = KTiedCovariance
    covariance(torch.ones(3, 2), torch.ones(4, 2))
    with pytest.raises(jaxtyping.TypeCheckError):
        covariance(torch.ones(3, 2), torch.ones(4, 1))
