"""The model folder: what comes back is what was saved, and nothing that is wrong with a folder gets through."""

import errno
import hashlib
import json
import shutil
from pathlib import Path

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.base import clone

from paragp import METHODS, ParametricGPRegressor
from paragp.artefact import CARD, CONFIG, TENSORS, ModelFileError, _checksum, load
from paragp.gp.kernels import KERNELS, kernel_name

from cases import full_disk

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
y = 10 + 3 * X[:, 0] + 0.1 * rng.normal(size=60)


def fit(method="ppgpr-mfd", kernel="matern52", X=X, y=y, **options):
    estimator = ParametricGPRegressor(method, kernel=kernel, n_inducing=5, max_epochs=2, random_state=0, **options)
    return estimator.fit(X, y)


def frame(n=60):
    values = np.random.default_rng(1)
    size = values.normal(size=n)
    size[::7] = np.nan
    return pd.DataFrame({
        "number": values.normal(size=n),
        "size": size,
        "whole": values.integers(0, 9, n),
        "yes": values.random(n) < 0.5,
        "town": values.choice(["Ulm", "Aix", None], n),
        "grade": pd.Categorical(values.choice(["a", "b", "c"], n)),
    })  # fmt: skip


def assert_same_predictions(one, other, X):
    for left, right in zip(one.predict(X, return_std=True), other.predict(X, return_std=True), strict=True):
        assert np.array_equal(left, right)
    assert np.array_equal(one.predict(X), other.predict(X))


@pytest.fixture(scope="module")
def model():
    """A model of every part: two sets of points, a sum of kernels, text columns."""
    data = frame()
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, active_dims=(0, 1))) + ScaleKernel(MaternKernel(nu=1.5))
    return fit("od-svgp", kernel, data, data["number"] + 5)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    model.save(path)
    return path


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of the saved model, to be spoiled."""
    return shutil.copytree(saved, tmp_path / "model")


# --- what comes back ---


@pytest.mark.parametrize("method", [*METHODS, "fitc", "exact"])
def test_loaded_predictions_are_equal_to_the_bit(method, tmp_path):
    model = fit(method)
    model.save(tmp_path / "model", keep_rows=method == "exact")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert_same_predictions(model, loaded, X)
    assert loaded.method == method
    assert loaded.noise_std_ == model.noise_std_
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == sorted([CARD, CONFIG, TENSORS])


@pytest.mark.parametrize("method", ["ppgpr-mfd", "svgp"])
def test_models_in_float32_are_equal_to_the_bit(method, tmp_path):
    many = np.random.default_rng(2).normal(size=(1100, 2))
    model = fit(method, X=many, y=many[:, 0])
    model.save(tmp_path / "model")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert next(loaded.fitted_.model.parameters()).dtype == torch.float32
    assert_same_predictions(model, loaded, many)
    assert_same_predictions(model, loaded, many[:10])


@pytest.mark.parametrize("method", ["ppgpr-mfd", "exact"])
@pytest.mark.parametrize("rows", [60, 1100])
def test_shapes_come_back(method, rows, tmp_path):
    many = np.random.default_rng(2).normal(size=(rows, 2))
    model = fit(method, X=many, y=many[:, 0])
    model.fitted_.model.likelihood.tails.fill_(0.2)
    model.fitted_.model.likelihood.parts[:2] = torch.tensor([[0.9, 0.0, 1.0], [0.1, 2.0, 3.0]])
    model.save(tmp_path / "model", keep_rows=True)
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert_same_predictions(model, loaded, many)
    assert loaded.predict_dist(many).shape == model.predict_dist(many).shape
    assert loaded.predict_dist(many).dof == pytest.approx(5)
    assert np.array_equal(loaded.predict_interval(many), model.predict_interval(many))
    assert (
        "distribution (a mixture of 2 Student-t with 5 degrees of freedom) of"
        in (tmp_path / "model" / CARD).read_text()
    )


def test_a_folder_of_before_there_were_tails_is_normal(model, folder):
    assert "It predicts a normal distribution of" in (folder / CARD).read_text()
    rewrite(folder, change_tensors=lambda tensors: [tensors.pop(f"likelihood.{name}") for name in ("tails", "parts")])
    loaded = ParametricGPRegressor.load(folder)
    assert_same_predictions(model, loaded, frame(30))
    assert np.isinf(loaded.predict_dist(frame(30)).dof)
    loaded.save(folder, overwrite=True)
    assert "likelihood.tails" in load_tensors((folder / TENSORS).read_bytes())


def test_leading_points_come_back_and_older_folders_have_all(tmp_path):
    model = fit("two-stage")
    S = model.fitted_.model.family.S
    S.leading.fill_(3)
    model.save(tmp_path / "three")
    assert_same_predictions(model, ParametricGPRegressor.load(tmp_path / "three"), X)
    S.leading.fill_(len(S.a))
    model.save(tmp_path / "all")
    rewrite(tmp_path / "all", change_tensors=lambda tensors: tensors.pop("family.S.leading"))
    assert_same_predictions(model, ParametricGPRegressor.load(tmp_path / "all"), X)
    for wrong in (0, -1, len(S.a) + 1):
        rewrite(
            tmp_path / "three", change_tensors=lambda tensors, wrong=wrong: tensors["family.S.leading"].fill_(wrong)
        )
        with pytest.raises(ModelFileError, match=f"'family.S.leading' is {wrong}, not a number of the inducing points"):
            ParametricGPRegressor.load(tmp_path / "three")


def test_tails_that_would_not_come_back_are_not_saved(tmp_path):
    model = fit("map")
    model.fitted_.model.likelihood.tails.fill_(0.5)
    with pytest.raises(ValueError, match="not a number from 0 to below 1/2"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_frames_with_text_categories_and_gaps_are_equal_to_the_bit(model, saved):
    loaded = ParametricGPRegressor.load(saved)
    new = frame(30).assign(town="Rome")
    assert_same_predictions(model, loaded, new)
    assert loaded.feature_names_in_.tolist() == new.columns.tolist()
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(new.rename(columns={"town": "city"}))


KERNELS_OF_THREE = [
    *KERNELS,
    RBFKernel(),
    ScaleKernel(RBFKernel(ard_num_dims=3)),
    ScaleKernel(RBFKernel(ard_num_dims=1)),
    RBFKernel(active_dims=(0, 2)) + MaternKernel(nu=0.5, ard_num_dims=1, active_dims=(1,)),
    ScaleKernel(RQKernel(ard_num_dims=3)) * PeriodicKernel(),
    ScaleKernel(RBFKernel() * RBFKernel()) + LinearKernel(),
    RBFKernel(lengthscale_constraint=gpytorch.constraints.Interval(0.5, 2.0)),
]


@pytest.mark.parametrize("kernel", KERNELS_OF_THREE, ids=lambda k: k if isinstance(k, str) else kernel_name(k))
def test_kernels_are_equal_to_the_bit(kernel, tmp_path):
    model = fit(kernel=kernel)
    model.save(tmp_path / "model")
    assert_same_predictions(model, ParametricGPRegressor.load(tmp_path / "model"), X)


class MyKernel(RBFKernel):
    pass


EXPONENTIAL = gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (ScaleKernel(MyKernel()), "MyKernel is not one of ScaleKernel, "),
        (gpytorch.kernels.PolynomialKernel(power=2), "PolynomialKernel is not one of"),
        (RBFKernel(lengthscale_prior=gpytorch.priors.GammaPrior(1.0, 1.0)), "without batches and priors"),
        (RBFKernel(lengthscale_constraint=EXPONENTIAL), "rebuilt from its parts it gives other values"),
    ],
)
def test_kernels_that_cannot_be_stored_are_refused_and_nothing_is_written(kernel, reason, tmp_path):
    model = fit(kernel=kernel)
    with pytest.raises(ValueError, match=f"cannot be stored: .*{reason}"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_exact_rows_are_stored_only_when_allowed(tmp_path):
    with pytest.raises(ValueError, match=r"holds none. Pass keep_rows=True to store them"):
        fit("exact").save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("points", "close"), [(5, False), (19, False), (20, True), (40, True), (1000, True)])
def test_the_card_says_when_inducing_points_may_show_rows(points, close, tmp_path):
    ParametricGPRegressor(n_inducing=points, max_epochs=1, random_state=0).fit(X, y).save(tmp_path / "model")
    text = (tmp_path / "model" / CARD).read_text()
    assert ("the inducing points started at the training rows and may lie close to them" in text) is close
    assert ("No row is stored here" in text) is not close


def test_few_distinct_rows_among_many_copies_are_rows_too(tmp_path):
    model = fit(X=np.tile(X[:4], (30, 1)), y=np.arange(120.0), warm_start=True)
    assert len(model.fitted_.model.family.Z) == 4
    assert model.fitted_.summary["points_near_rows"]
    assert model.fit(np.vstack([X] * 3), np.tile(y, 3) + np.arange(180)).fitted_.summary["points_near_rows"]  # goes on


def test_fitc_stores_points_that_were_rows_only_when_allowed(tmp_path):
    model = ParametricGPRegressor("fitc", max_epochs=1, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"may lie close to them.* Pass keep_rows=True to store them"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
    model.save(tmp_path / "model", keep_rows=True)
    assert "may lie close" in (tmp_path / "model" / CARD).read_text()


def test_the_parameters_come_back(tmp_path):
    asked = {
        "beta": np.float32(0.5), "learning_rate": np.float64(0.02), "batch_size": np.int64(7), "n_inducing": 6,
        "early_stopping": np.True_, "categorical_features": np.array([1]), "max_epochs": 2, "dtype": "float64",
        "validation_fraction": 0.3, "random_state": 3, "recipe": "adam", "n_iter_no_change": 4,
    }  # fmt: skip
    model = ParametricGPRegressor("ppgpr-mf", kernel="rbf", **asked).fit(X.round(), y)
    model.save(tmp_path / "model")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    for name, value in model.get_params().items():
        assert np.array_equal(getattr(loaded, name), value), name
    assert loaded.beta_ == 0.5
    again = clone(loaded).fit(X.round(), y)
    assert_same_predictions(model, again, X.round())


def test_the_history_comes_back(tmp_path):
    model = fit()
    model.fitted_.history[0]["nll"] = np.nan
    model.save(tmp_path / "model")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert len(loaded.history_) == model.n_iter_ > 1
    assert np.isnan(loaded.history_[0].pop("nll"))
    model.history_[0].pop("nll")
    assert loaded.history_ == model.history_


def test_a_folder_of_before_histories_were_saved_has_none(folder):
    rewrite(folder, lambda config: config.pop("history"))
    assert ParametricGPRegressor.load(folder).history_ == []


def test_parameters_that_are_no_json_are_left_at_their_defaults(tmp_path):
    model = fit(kernel=RBFKernel(), device=torch.device("cpu"))
    model.set_params(random_state=np.random.RandomState(0)).fit(X, y).save(tmp_path / "model")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert (loaded.device, loaded.random_state) == ("auto", None)
    assert loaded.kernel is loaded.fitted_.model.kernel


def test_object_arrays_are_predicted_after_loading_as_before(tmp_path):
    objects = np.c_[X[:, 0].astype(object), np.array(["u", "v", None] * 20, dtype=object)]
    model = fit(X=objects, categorical_features=[1])
    model.save(tmp_path / "model")
    loaded = ParametricGPRegressor.load(tmp_path / "model")
    assert_same_predictions(model, loaded, objects)
    assert np.array_equal(loaded.predict(objects.tolist()), model.predict(objects))


def test_no_file_can_execute(saved):
    config, tensors = (saved / CONFIG).read_bytes(), (saved / TENSORS).read_bytes()
    assert json.loads(config)["format"] == "paragp model"
    assert load_tensors(tensors).keys() == json.loads(config)["tensors"].keys()
    assert b"Ulm" not in tensors  # categories are in the config alone


def test_the_path_may_have_parents_that_do_not_exist_and_may_be_a_string(model, tmp_path):
    model.save(str(tmp_path / "new" / "deep" / "model"))
    ParametricGPRegressor.load(str(tmp_path / "new" / "deep" / "model"))


# --- never over anything else ---


def test_an_existing_model_is_replaced_only_when_asked(model, folder):
    before = (folder / CONFIG).read_bytes()
    with pytest.raises(FileExistsError, match=r"model exists. Choose another path, or overwrite it"):
        fit().save(folder)
    assert (folder / CONFIG).read_bytes() == before
    fit("map").save(folder, overwrite=True)
    assert ParametricGPRegressor.load(folder).method == "map"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_empty_folder_is_free(model, tmp_path):
    model.save(tmp_path)
    ParametricGPRegressor.load(tmp_path)


def other_model(path):  # of another library, whose files have the same names
    path.mkdir()
    (path / CONFIG).write_text('{"model_type": "bert"}')
    (path / TENSORS).write_bytes(b"weights")


def a_file(path):
    path.write_text("mine")


def a_folder_of_files(path):
    path.mkdir()
    (path / "thesis.txt").write_text("mine")


def a_broken_model(path):
    path.mkdir()
    (path / CONFIG).write_text("{")


@pytest.mark.parametrize("make", [other_model, a_file, a_folder_of_files, a_broken_model])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_a_model_is_never_overwritten(make, overwrite, model, tmp_path):
    make(tmp_path / "kept")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(FileExistsError, match="is not a model, so it is not overwritten" if overwrite else "exists"):
        model.save(tmp_path / "kept", overwrite=overwrite)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_a_model_with_notes_beside_it_is_not_overwritten(model, folder):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds more than a model \('notes.txt'\)"):
        model.save(folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_link_to_a_model_is_followed(model, folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    fit("map").save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert ParametricGPRegressor.load(folder).method == "map"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]


def test_a_path_inside_a_file_is_refused_in_words(model, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(PermissionError, match="file is not a folder that may be written to"):
        model.save(tmp_path / "file" / "model")


# --- whole or not at all ---


@pytest.mark.parametrize("limit", [0, 1000, 4000])
def test_a_full_disk_leaves_nothing(limit, model, tmp_path):
    with full_disk(limit), pytest.raises(OSError, match=r"The model cannot be written to .*model: File too large"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [TENSORS, CONFIG, CARD])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_at_any_file_leaves_the_old_model(name, error, model, folder, monkeypatch):
    write = Path.write_bytes

    def fail(path, data):
        write(path, data[: len(data) // 2] if path.name == name else data)
        if path.name == name:
            raise error

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(type(error)) as caught:
        fit("map").save(folder, overwrite=True)
    if isinstance(error, OSError):
        assert caught.value.strerror == f"The model cannot be written to {folder}: No space left on device"
    assert ParametricGPRegressor.load(folder).method == "od-svgp"
    assert list(folder.parent.iterdir()) == [folder]


# --- what is refused at loading ---


def refusal(path):
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def rewrite(folder, change=None, change_tensors=None):
    """Alter config and tensors as an author would who knows how checksums are made."""
    tensors = load_tensors((folder / TENSORS).read_bytes())
    config = json.loads((folder / CONFIG).read_text())
    if change_tensors:
        change_tensors(tensors)
        config["tensors"] = {name: [str(t.dtype), list(t.shape)] for name, t in tensors.items()}
    if change:
        change(config)
    data = save_tensors(tensors)
    config["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    config["config_sha256"] = _checksum(config)
    (folder / TENSORS).write_bytes(data)
    (folder / CONFIG).write_text(json.dumps(config))


def test_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"There is no model at {tmp_path / 'model'}"):
        load(tmp_path / "model")


def test_a_folder_or_a_file_that_is_no_model(folder, tmp_path):
    assert "it has no config.json" in refusal(tmp_path)
    assert "it has no config.json" in refusal(folder / CARD)
    (tmp_path / CONFIG).write_text('{"model_type": "bert"}')
    assert "does not say it is a 'paragp model'" in refusal(tmp_path)


def test_missing_tensors_file(folder):
    (folder / TENSORS).unlink()
    assert "is not a whole model: model.safetensors is missing" in refusal(folder)
    (folder / TENSORS).mkdir()
    assert "is not a whole model: model.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None, {"a": [1] * 10_000}])
def test_an_unknown_version_names_the_library_to_use(version, folder):
    rewrite(folder, lambda config: config.update(version=version, library="9.9.9"))
    message = refusal(folder)
    assert "this paragp (0.1.0) reads version 1. Load it with the paragp that wrote it ('9.9.9')." in message
    assert len(message) < 500


@pytest.mark.parametrize("share", [0, 0.3, 0.99])
def test_truncated_files(share, folder):
    for name, words in ((CONFIG, "is truncated or not JSON"), (TENSORS, "is truncated or was altered")):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(share * len(data))])
        assert words in refusal(folder)
        (folder / name).write_bytes(data)
    load(folder)


@pytest.mark.parametrize("position", [0, 7, 100, -100, -1])
def test_one_flipped_bit_of_the_tensors(position, folder):
    data = bytearray((folder / TENSORS).read_bytes())
    data[position] ^= 1
    (folder / TENSORS).write_bytes(data)
    assert "its checksum is not the one in config.json" in refusal(folder)


def test_one_edited_number_of_the_config(folder):
    config = json.loads((folder / CONFIG).read_text())
    config["target"]["mean"] += 1
    (folder / CONFIG).write_text(json.dumps(config))
    assert "was altered after it was saved" in refusal(folder)


@pytest.mark.parametrize("depth", [400, 900, 100_000])
def test_deep_nesting(depth, folder):
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        nested = opening * depth + "1" + closing * depth
        (folder / CONFIG).write_text(f'{{"format": "paragp model", "version": 1, "summary": {nested}}}')
        refusal(folder)


def test_a_huge_config(folder):
    with (folder / CONFIG).open("r+b") as file:
        file.truncate(200 * 2**20)  # sparse: takes no room
    assert "larger than a config can be" in refusal(folder)


def test_a_huge_file_of_tensors_is_not_read(folder):
    with (folder / TENSORS).open("r+b") as file:
        file.truncate(2**40)  # sparse: takes no room
    assert "larger than the tensors that config.json announces" in refusal(folder)


@pytest.mark.parametrize("value", [None, 3, {"Z": 3}, {"Z": ["torch.save", [1]]}, {"Z": ["torch.float32", [[]]]}])
def test_tensors_that_are_announced_wrongly(value, folder):
    rewrite(folder, lambda config: config.update(tensors=value))
    assert "does not announce the tensors" in refusal(folder)


def to(name, make):
    def change(tensors):
        tensors[name] = make(tensors[name])

    return change


Z = "family.Z"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (to(Z, lambda t: t * float("nan")), "NaN"),
        (to("family.m", lambda t: t / 0), "'family.m' holds NaN or infinite values"),
        (to("likelihood.raw", lambda t: t * float("nan")), "'likelihood.raw' holds NaN or infinite values"),
        (to("likelihood.tails", lambda t: t * float("nan")), "'likelihood.tails' holds NaN or infinite values"),
        (to("likelihood.tails", lambda t: t + 0.5), "'likelihood.tails' is 0.5, not a number from 0 to below 1/2"),
        (to("likelihood.tails", lambda t: t - 0.1), "'likelihood.tails' is -0.1, not a number from 0 to below 1/2"),
        (to("likelihood.tails", lambda t: t.float()), "'likelihood.tails' is ['torch.float32', []], not"),
        (to("likelihood.parts", lambda t: t - 1), "'likelihood.parts' is no distribution's: parts must be"),
        (to("likelihood.parts", lambda t: t * 0), "'likelihood.parts' is no distribution's: parts must be"),
        (to("likelihood.parts", lambda t: t[:2]), "'likelihood.parts' is ['torch.float64', [2, 3]], not"),
        (to("likelihood.tails", lambda t: t.repeat(2)), "'likelihood.tails' is ['torch.float64', [2]], not"),
        (to("kernel.kernels.0.raw_outputscale_constraint.lower_bound", lambda t: t * float("nan")), "NaN"),
        (to("kernel.kernels.0.raw_outputscale", lambda t: t + 1e308 * 10), "infinite"),
        (to(Z, lambda t: t[:, :2].contiguous()), "the columns give 11 inputs, the tensors are torch.float64 of shape"),
        (to(Z, lambda t: t[0].contiguous()), "the columns give 11 inputs"),
        (to(Z, lambda t: t[:0].contiguous()), "Inducing points must be"),
        (to(Z, lambda t: t.half()), "torch.float16"),
        (to(Z, lambda t: t.long()), "torch.int64"),
        (to(Z, lambda t: t.float()), "precision"),
        (to("family.m", lambda t: t.float()), "'family.m' is ['torch.float32', [5]], not ['torch.float64', [5]]"),
        (to("family.m", lambda t: t.to(torch.complex64)), "'family.m' is ['torch.complex64'"),
        (to("family.m", lambda t: t[:2].contiguous()), "'family.m' is ['torch.float64', [2]], not"),
        (to("family.Z_variance", lambda t: torch.zeros(10**6, 11, dtype=t.dtype)), "1000000 inducing points"),
        (to("family.S.L", lambda t: t[:2].contiguous()), "is of another size"),
        (to("kernel.kernels.0.base_kernel.active_dims", lambda t: t + 1000), "out of"),
        (lambda tensors: tensors.pop("family.m"), "'family.m' is missing, not ['torch.float64'"),
        (lambda tensors: tensors.pop(Z), "'family.Z' is missing"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "'extra' is ['torch.float32', [1]], not expected"),
        (lambda tensors: tensors.clear(), "'family.Z' is missing"),
    ],
)
def test_wrong_tensors_under_right_checksums(change, reason, folder):
    rewrite(folder, change_tensors=change)
    assert reason in refusal(folder)


def test_tensors_that_were_not_announced(folder):
    rewrite(folder, lambda config: config["tensors"].pop("family.m"))
    assert "not those that the config announces" in refusal(folder)


def setting(*keys, value):
    def change(config):
        place = config
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


FIRST = ("columns", 0)
RBF = ("kernel", "parts", 0, "base")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (setting("columns", value=[]), "the columns must be a list"),
        (setting("columns", value=[1]), "a column record must hold"),
        (lambda config: config["columns"].pop(), "the feature names are not those of the columns"),
        (lambda config: config["columns"].reverse(), "the feature names are not those of the columns"),
        (lambda config: config["columns"][0].update(name="size"), "the columns contradict each other"),
        (setting(*FIRST, "kind", value="ordinal"), "numeric or categorical"),
        (setting(*FIRST, "other", value=True), "column"),
        (setting(*FIRST, "mean", value="0"), "'mean' of a column record must be float"),
        (setting(*FIRST, "mean", value=10**400), "too large"),
        (setting(*FIRST, "mean", value=float("nan")), "no finite mean"),
        (setting(*FIRST, "deviation", value=0), "positive deviation"),
        (setting(*FIRST, "missing", value=True), "the columns give 12 inputs"),
        (setting(*FIRST, "surplus", value=1), "a column record must hold exactly"),
        (setting("columns", 4, "categories", value=["a", "b", 3]), "a list of text"),
        (setting("columns", 4, "categories", value=["a", "b", "c", "d"]), "the columns give 13 inputs"),
        (setting("target", value={"name": "y"}), "missing"),
        (setting("target", "name", value=3), "no name, mean and deviation"),
        (setting("target", "mean", value=True), "no name, mean and deviation"),
        (setting("target", "mean", value=float("inf")), "no name, mean and deviation"),
        (setting("target", "deviation", value=-1), "deviation is not positive"),
        (setting("feature_names", value=["a"]), "the feature names are not those of the columns"),
        (setting("feature_names", value={}), "the feature names are not those of the columns"),
        (setting("library", value=1), "the library that wrote it"),
        (setting("library", value="\x1b[2J"), "the library that wrote it"),
        (setting("summary", value=None), "the summary of the training does not hold rows"),
        (setting("summary", "rows", value="many"), "the summary of the training does not hold rows"),
        (setting("summary", "dtype", value="object"), "does not name the precision"),
        (setting("summary", "kernel", value=["rbf"]), "does not name the precision and the kernel"),
        (setting("summary", "validation_scores", value={"nll": "low"}), "scores are not numbers"),
        (setting("summary", "parameters", value=[1]), "does not hold the parameters"),
        (setting("history", value=None), "the history of the training is not a list of records"),
        (setting("history", value=[1, 2]), "the history of the training is not a list of records"),
        (setting("history", value=[{"epoch": 2}]), "does not count its epochs from 1"),
        (setting("history", value=[{"nll": 1.0}]), "does not count its epochs from 1"),
        (setting("history", value=[{"epoch": 1, "nll": "<script>"}]), "holds more than numbers"),
        (setting("history", value=[{"epoch": 1, "nll": [0]}]), "holds more than numbers"),
        (setting("history", value=[{"epoch": 1, "nll": float("inf")}]), "holds more than numbers"),
        (setting("noise_floor", value=None), "the noise floor"),
        (setting("noise_floor", value=0.7), "the noise floor"),
        (setting("method", value="gpt"), "'gpt' is missing"),
        (setting("method", value=["svgp"]), "unhashable"),
        (setting("method", value="exact"), "'X' is missing"),
        (setting("method", value="svgp"), "'family.Z_variance' is ['torch.float64', [5, 11]], not expected"),
        (setting("kernel", value="rbf"), "names no known kernel"),
        (setting("kernel", "type", value="__import__"), "names no known kernel"),
        (setting("kernel", "type", value="SpectralMixtureKernel"), "names no known kernel"),
        (setting("kernel", "parts", value=[]), "has no parts"),
        (setting("kernel", "parts", value=7), "not iterable"),
        (setting("kernel", "constraints", value={"forward": "Positive"}), "the constraint 'Positive' of 'forward'"),
        (setting(*RBF, "constraints", value={"raw_lengthscale": "eval"}), "the constraint 'eval'"),
        (setting(*RBF, "constraints", value=3), "has no attribute"),
        (setting(*RBF, "active_dims", value=[0, 99]), "not among its 11 inputs"),
        (setting(*RBF, "active_dims", value=[0, -1]), "not among its 11 inputs"),
        (setting(*RBF, "active_dims", value=[]), "not among its 11 inputs"),
        (setting(*RBF, "active_dims", value="01"), "not among its 11 inputs"),
        (setting(*RBF, "ard_num_dims", value=10**12), "another number of lengthscales"),
        (setting("kernel", "parts", 1, "base", "nu", value=7), "nu"),
        (lambda config: config["kernel"]["parts"][1]["base"].pop("nu"), "'nu' is missing"),
        (lambda config: config.pop("kernel"), "'kernel' is missing"),
    ],
)
def test_wrong_configs_under_right_checksums(change, reason, folder):
    rewrite(folder, change)
    assert reason in refusal(folder)


def test_a_kernel_nested_without_end(folder):
    def change(config):
        for _ in range(200):
            config["kernel"] = {"type": "ScaleKernel", "constraints": {}, "base": config["kernel"]}

    rewrite(folder, change)
    refusal(folder)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (to("y", lambda t: t[:3].contiguous()), "X and y are not as many rows"),
        (to("y", lambda t: t * float("nan")), "'y' holds NaN"),
        (to("X", lambda t: t[:, :1].contiguous()), "the columns give 3 inputs"),
        (to("X", lambda t: t.bool()), "torch.bool"),
    ],
)
def test_wrong_rows_of_an_exact_model(change, reason, tmp_path):
    fit("exact").save(tmp_path / "model", keep_rows=True)
    rewrite(tmp_path / "model", change_tensors=change)
    assert reason in refusal(tmp_path / "model")
    fit("exact").save(tmp_path / "model", keep_rows=True, overwrite=True)
    rewrite(tmp_path / "model", setting("solver", value="magic"))
    assert "solver must be" in refusal(tmp_path / "model")


# --- whatever comes ---


def load_or_refuse(folder):
    """A model that predicts, or a ValueError or OSError."""
    try:
        loaded = ParametricGPRegressor.load(folder)
        loaded.predict(frame(3), return_std=True)
    except (ValueError, OSError):
        pass


HURRIED = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.filterwarnings("ignore")  # of numbers at the edge of what a float holds
@given(data=st.data())
@HURRIED
def test_no_edit_of_the_bytes_gives_another_exception(data, saved, tmp_path_factory):
    folder = shutil.copytree(saved, tmp_path_factory.mktemp("bytes") / "model")
    name = data.draw(st.sampled_from([CONFIG, TENSORS]))
    content = bytearray((folder / name).read_bytes())
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, min(len(content), start + 20)) | st.just(len(content)))
    content[start:stop] = data.draw(st.binary(max_size=20))
    (folder / name).write_bytes(content)
    if name == TENSORS and data.draw(st.booleans()):
        config = json.loads((folder / CONFIG).read_text())
        config["tensors_sha256"] = hashlib.sha256(content).hexdigest()
        config["config_sha256"] = _checksum(config)
        (folder / CONFIG).write_text(json.dumps(config))
    load_or_refuse(folder)
    shutil.rmtree(folder.parent)


def places(value, path=()):
    """The keys that lead to each part of a JSON value."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 3) | st.floats() | st.text(max_size=5)
    | st.sampled_from([10**400, "numeric", "RBFKernel", "float64", "exact", "svgp"]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
    max_leaves=5,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@given(data=st.data())
@HURRIED
def test_no_value_in_the_config_gives_another_exception(data, saved, tmp_path_factory):
    folder = shutil.copytree(saved, tmp_path_factory.mktemp("values") / "model")

    def change(config):
        keys = data.draw(st.sampled_from([path for path in places(config) if path and path[0] != "version"]))
        setting(*keys, value=data.draw(JSON))(config)

    rewrite(folder, change)
    load_or_refuse(folder)
    shutil.rmtree(folder.parent)


# --- the card ---


def test_the_card_says_what_the_model_is(saved):
    text = (saved / CARD).read_text()
    assert text.startswith("# A model of number\n\nOD-SVGP, made by paragp 0.1.0.")
    assert "40 training rows, 20 validation rows." in text
    assert "No row is stored here; the inducing points started at means of similar rows, " in text
    assert "| town | categorical |  |  | yes | 2 |" in text
    assert "```python\nfrom paragp import ParametricGPRegressor\n" in text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a|b", r"a\|b"),
        ("a\nb\r\n\tc", "a b c"),
        ("<script>alert(1)</script>", r"&lt;script&gt;alert\(1\)&lt;/script&gt;"),
        ("`rm`", r"\`rm\`"),
        ("[x](http://y)", r"\[x\]\(http://y\)"),
        ("back\\|slash", r"back\\\|slash"),
        ("&lt;", "&amp;lt;"),
        ("\x1b[31m\x00\u202ered", r"\[31m red"),
        ("|" * 500, r"\|" * 100),
    ],
)
def test_the_card_shows_hostile_names_as_plain_words(name, shown, tmp_path):
    data = pd.DataFrame({name: X[:, 0], "other": X[:, 1]})
    fit("map", X=data, y=pd.Series(y, name=name)).save(tmp_path / "model")
    text = (tmp_path / "model" / CARD).read_text()
    assert text.startswith(f"# A model of {shown}\n")
    row = next(line for line in text.splitlines() if "| numeric |" in line)
    assert row.startswith(f"| {shown} | numeric |")
    assert ParametricGPRegressor.load(tmp_path / "model").feature_names_in_[0] == name


def test_a_name_that_is_not_unicode_can_be_stored(tmp_path):
    data = pd.DataFrame(X[:, :1], columns=pd.Index(["\ud800"], dtype=object))
    fit("map", X=data).save(tmp_path / "model")
    assert ParametricGPRegressor.load(tmp_path / "model").feature_names_in_[0] == "\ud800"


def test_the_card_shows_validation_scores(tmp_path):
    fit("map", X=np.tile(X, (3, 1)), y=np.random.default_rng(0).normal(size=180)).save(tmp_path / "model")
    assert (
        "## On the validation rows, in the target's units\n\n| metric | value |"
        in (tmp_path / "model" / CARD).read_text()
    )
