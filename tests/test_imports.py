"""Imports point one way: from the command line down to the mathematics."""

import ast
from pathlib import Path

import pytest

import paragp

ROOT = Path(paragp.__file__).parent
# From the bottom up; modules of one layer may import each other only within the same package.
LAYERS = [
    {"atomic"},
    {"shape"},
    {"predictive", "data"},
    {"metrics", "conformal"},
    {"gp"},
    {"training"},
    {"fitted", "checks", "kernel_record"},
    {"card"},
    {"artefact", "onnx", "report"},
    {"estimator"},
    {"paper"},
    {"paragp"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def package_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree):
    """The paragp packages a module imports; `from paragp import x` counts as the whole library."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full"
            names = [node.module]
        yield from ((name + ".paragp").split(".")[1] for name in names if name.split(".")[0] == "paragp")


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_import_points_upward(path):
    own = package_of(path)
    for other in imported(ast.parse(path.read_text())):
        assert other == own or LEVEL[other] < LEVEL[own], f"{path.name} ({own}) imports {other}"


OPTIONAL = {"matplotlib", "onnx", "onnxruntime", "jinja2"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_optional_extras_are_imported_inside_functions(path):
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    name = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
                    assert name.split(".")[0] in OPTIONAL, f"{path.name}: import of {name} inside {function.name}"


def test_public_names_exist_and_are_few():
    assert all(hasattr(paragp, name) for name in paragp.__all__)
    assert len(paragp.__all__) <= 25
