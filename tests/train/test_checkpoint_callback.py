"""`ModelCheckpoint` and `CheckpointConfig`: when files are written, which are kept, what is in them."""

import json
import os
import threading

import numpy as np
import pytest

from parallel_lab import Tensor, nn
from parallel_lab.base.errors import NotBuiltYet
from parallel_lab.train import CheckpointConfig, LambdaCallback, Model, ModelCheckpoint, checkpoint_callback
from parallel_lab.train.checkpoint import async_ckpt_thread_status, load_checkpoint, load_param_into_net, wait_for_saves
from parallel_lab.train.checkpoint.format import read_checkpoint
from parallel_lab.train.checkpoint_callback import check_places, free_prefix, write_records
from tests.crossed import each_of
from tests.refusals import refused
from tests.train.runs import Affine, affine_model, batches


def names(folder):
    """The checkpoints in a folder, in the order of their steps."""
    found = [path.name for path in folder.glob("*.ckpt")]
    return sorted(found, key=lambda name: [int(n) for n in name.removesuffix(".ckpt").split("-")[-1].split("_")])


def train(folder, epochs=2, model=None, more=(), clock=None, **config):
    """Train epochs of 4 steps; the callback."""
    save = ModelCheckpoint("net", folder, CheckpointConfig(**config), **({} if clock is None else {"clock": clock}))
    (model or affine_model()).train(epochs, batches(), callbacks=[*more, save])
    return save


# ---- when, and which ----


@each_of(
    ("config", "files"),
    ({"keep_checkpoint_max": 20}, ["1_1", "1_2", "1_3", "1_4", "2_1", "2_2", "2_3", "2_4"]),
    ({}, ["1_4", "2_1", "2_2", "2_3", "2_4"]),
    ({"keep_checkpoint_max": 1}, ["2_4"]),
    ({"keep_checkpoint_max": 0}, ["2_4"]),
    ({"save_checkpoint_steps": 4}, ["1_4", "2_4"]),
    ({"save_checkpoint_steps": 3}, ["1_3", "2_2", "2_4"]),  # the last step is always saved
    ({"save_checkpoint_steps": 100}, ["2_4"]),
)
def test_files_are_named_by_epoch_and_step_and_the_oldest_are_deleted(config, files, tmp_path):
    save = train(tmp_path, **config)
    assert names(tmp_path) == [f"net-{file}.ckpt" for file in files]
    assert save.latest_ckpt_file_name == str(tmp_path / "net-2_4.ckpt")


def test_seed_003_s_callback_writes_ckp_files_into_the_folder_of_the_rank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    affine_model().train(1, batches(), callbacks=[ModelCheckpoint(directory=f"{3}")])
    assert names(tmp_path / "3") == [f"CKP-1_{step}.ckpt" for step in range(1, 5)]
    assert (tmp_path / "3" / "CKP-graph.meta").is_file()


def test_in_sink_mode_an_epoch_is_saved_once(tmp_path):
    affine_model().train(3, batches(), callbacks=ModelCheckpoint("net", tmp_path), dataset_sink_mode=True)
    assert names(tmp_path) == ["net-1_4.ckpt", "net-2_4.ckpt", "net-3_4.ckpt"]


def test_a_new_file_is_there_before_an_old_one_is_deleted(tmp_path, monkeypatch):
    from parallel_lab.train import checkpoint_callback

    write, before = checkpoint_callback.write_checkpoint, []

    def watched(*args, **kwargs):
        before.append(names(tmp_path))
        return write(*args, **kwargs)

    monkeypatch.setattr(checkpoint_callback, "write_checkpoint", watched)
    train(tmp_path, keep_checkpoint_max=1)
    assert [len(found) for found in before] == [0, *[1] * 7]


def test_only_files_of_this_run_are_deleted(tmp_path):
    (tmp_path / "net-7_7.ckpt").write_bytes(b"mine")
    (tmp_path / "other-1_1.ckpt").write_bytes(b"mine")
    train(tmp_path, keep_checkpoint_max=1)
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == ["net-7_7.ckpt", "net_1-2_4.ckpt", "other-1_1.ckpt"]


@each_of(
    ("there", "prefix"),
    ([], "net"),
    (["net-1_4.ckpt"], "net_1"),
    (["net-1_4.ckpt", "net_1-2_4.ckpt", "net_12-1_1.safetensors"], "net_13"),
    (["net-graph.meta", "network-1_1.ckpt", "net-1_4.txt", "a.net-1_1.ckpt", "net_x-1_1.ckpt"], "net"),
    (["net-2_7_breakpoint.ckpt"], "net_1"),
)
def test_a_prefix_that_is_taken_gets_a_number(there, prefix, tmp_path):
    for name in there:
        (tmp_path / name).touch()
    assert free_prefix(tmp_path, "net") == prefix


def test_a_second_training_with_the_same_callback_begins_files_of_its_own(tmp_path):
    save = ModelCheckpoint("net", tmp_path, CheckpointConfig(keep_checkpoint_max=2))
    model = affine_model()
    model.train(1, batches(), callbacks=save)
    model.train(1, batches(), callbacks=save)
    found = sorted(p.name for p in tmp_path.glob("*.ckpt"))
    assert found == ["net-1_3.ckpt", "net-1_4.ckpt", "net_1-1_3.ckpt", "net_1-1_4.ckpt"]


class Clock:
    """Seconds that grow by `step` with every training step."""

    def __init__(self, step):
        self.now, self.step = 0.0, step
        self.tick = LambdaCallback(on_train_step_begin=self._tick)

    def _tick(self, _):
        self.now += self.step

    def __call__(self):
        return self.now


def test_files_by_seconds_are_saved_when_more_than_that_has_passed(tmp_path):
    clock = Clock(4.0)  # steps at 4, 8, 12, 16 ... s: more than 10 s after 0, 12, 24
    rule = {"save_checkpoint_steps": None, "save_checkpoint_seconds": 10}
    train(tmp_path, more=[clock.tick], clock=clock, keep_checkpoint_max=9, **rule)
    assert names(tmp_path) == ["net-1_3.ckpt", "net-2_2.ckpt", "net-2_4.ckpt"]


def test_one_file_is_kept_per_n_minutes_and_the_last(tmp_path):
    clock = Clock(30.0)  # a step every half minute: at 30, 60, ..., 240 s
    train(tmp_path, more=[clock.tick], clock=clock, keep_checkpoint_max=0, keep_checkpoint_per_n_minutes=1)
    # at 30, 90, 150 and 210 s; and 240
    assert names(tmp_path) == ["net-1_1.ckpt", "net-1_3.ckpt", "net-2_1.ckpt", "net-2_3.ckpt", "net-2_4.ckpt"]


# ---- what is in them ----


def momentum_model():
    net = Affine()
    return Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.05, 0.9))


def losses_of(model, epochs, **options):
    found = []
    watch = LambdaCallback(on_train_step_end=lambda c: found.append(float(c.original_args().net_outputs)))
    more = options.pop("more", [])
    model.train(epochs, batches(), callbacks=[watch, *more], **options)
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(asynchronous, tmp_path):
    whole = losses_of(momentum_model(), 5)
    save = ModelCheckpoint("net", tmp_path, CheckpointConfig(4, async_save=asynchronous))
    first = losses_of(momentum_model(), 3, more=[save])
    model = momentum_model()
    assert load_param_into_net(model.train_network, load_checkpoint(tmp_path / "net-3_4.ckpt")) == ([], [])
    assert model.train_network.optimizer.global_step == 12
    assert first + losses_of(model, 5, initial_epoch=3) == whole


def test_a_file_holds_the_values_after_its_step(tmp_path):
    seen = {}

    def note(context):
        params = context.original_args()
        step = params.cur_step_num - 4 * (params.cur_epoch_num - 1)
        seen[f"net-{params.cur_epoch_num}_{step}.ckpt"] = params.network.dense.weight.asnumpy().copy()

    train(tmp_path, more=[LambdaCallback(on_train_step_end=note)], keep_checkpoint_max=9, async_save="thread")
    assert set(seen) == set(names(tmp_path))
    for name, weight in seen.items():
        np.testing.assert_array_equal(read_checkpoint(tmp_path / name).tensors["dense.weight"].array, weight)


def test_saved_network_and_append_info(tmp_path):
    own = Affine()
    own.dense.weight.set_data(np.full((1, 3), 7, np.float32))
    info = ["epoch_num", "step_num", {"lr": 0.5, "note": "first try", "scale": Tensor(np.float32(3))}]
    train(tmp_path, saved_network=own, append_info=info)
    assert load_checkpoint(str(tmp_path / "net-2_4.ckpt"))["note"] == "first try"
    stored = read_checkpoint(tmp_path / "net-2_4.ckpt")
    assert (stored.tensors["dense.weight"].array == 7).all()
    assert [stored.tensors[name].array for name in ("epoch_num", "step_num", "lr", "scale")] == [2, 8, 0.5, 3]


def test_the_graph_file_describes_the_network(tmp_path):
    train(tmp_path)
    facts = json.loads((tmp_path / "net-graph.meta").read_text())
    assert (
        facts["network"] == "Affine" and facts["cells"] == {"": "Affine", "dense": "Dense"} and facts["program"] is None
    )
    assert facts["parameters"] == {"dense.weight": {"shape": [1, 3], "dtype": "float32"}}


def test_format_safetensors_changes_the_name_only(tmp_path):
    train(tmp_path, format="safetensors", keep_checkpoint_max=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net-2_4.safetensors", "net-graph.meta"]
    assert "dense.weight" in read_checkpoint(tmp_path / "net-2_4.safetensors").tensors


# ---- ends that are no end ----


def fail_at(step):
    return LambdaCallback(on_train_step_end=lambda c: 1 / 0 if c.original_args().cur_step_num == step else None)


def test_exception_save_writes_a_breakpoint(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, more=[fail_at(6)], exception_save=True, save_checkpoint_steps=100)
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == ["net-2_2_breakpoint.ckpt"]
    assert read_checkpoint(tmp_path / "net-2_2_breakpoint.ckpt").tensors["global_step"].array == 6


def test_without_exception_save_an_error_writes_nothing_more(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, more=[fail_at(6)], save_checkpoint_steps=4)
    assert names(tmp_path) == ["net-1_4.ckpt"]


def test_the_thread_of_async_save_is_joined_whatever_happens(tmp_path):
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, more=[fail_at(6)], async_save=True)
    assert names(tmp_path)[-1] == "net-2_1.ckpt"
    assert not async_ckpt_thread_status()


def test_wait_for_saves_waits_for_all_saves_of_a_training(tmp_path, monkeypatch):
    may_write, seen = threading.Event(), []

    def slow(path, records, added):
        may_write.wait(20)
        write_records(path, records, added)

    def look(_):  # after the save of step 1 has begun
        if not seen:
            seen.append((async_ckpt_thread_status(), names(tmp_path)))
            may_write.set()
            wait_for_saves()
            seen.append((async_ckpt_thread_status(), names(tmp_path)))

    monkeypatch.setattr(checkpoint_callback, "write_records", slow)
    save = ModelCheckpoint("net", tmp_path, CheckpointConfig(async_save=True, keep_checkpoint_max=9))
    affine_model().train(1, batches(), callbacks=[save, LambdaCallback(on_train_step_end=look)])
    assert seen == [(True, []), (False, ["net-1_1.ckpt"])]


@pytest.mark.quick(1)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_file_that_cannot_be_written_ends_the_training_and_names_it(asynchronous, tmp_path):
    in_the_way = LambdaCallback(on_train_epoch_begin=lambda _: (tmp_path / "net-1_3.ckpt").mkdir())
    with pytest.raises(OSError, match=r"net-1_3\.ckpt"):
        train(tmp_path, more=[in_the_way], async_save=asynchronous, keep_checkpoint_max=9)
    assert names(tmp_path)[:3] == ["net-1_1.ckpt", "net-1_2.ckpt", "net-1_3.ckpt"]
    assert not (tmp_path / "net-1_4.ckpt").exists()


# ---- several ranks ----


def place(folder, steps=1, integrated=True, prefix="CKP"):
    return {"folder": f"host:{folder}", "prefix": prefix, "integrated_save": integrated, "rule": [steps, None]}


def test_ranks_may_not_share_a_folder():
    with pytest.raises(ValueError, match=r"ranks 0, 2 all save their checkpoints to /a\..*get_rank"):
        check_places("Model.train", [[place("/a")], [place("/b")], [place("/a")]], "data_parallel")


@pytest.mark.parametrize("said", [[[place("/a")], []], [[place("/a")], [place("/b", steps=2)]]])
def test_ranks_that_put_slices_together_do_it_at_the_same_steps(said):
    with pytest.raises(RuntimeError, match=r"same steps.*integrated_save=False"):
        check_places("Model.train", said, "semi_auto_parallel")
    check_places("Model.train", said, "data_parallel")
    slices = [[{**one, "integrated_save": False} for one in places] for places in said]
    check_places("Model.train", slices, "semi_auto_parallel")


# ---- arguments ----


def test_one_rule_of_saving_and_one_of_keeping_holds():
    both = CheckpointConfig(save_checkpoint_seconds=100, keep_checkpoint_per_n_minutes=5)
    assert (both.save_checkpoint_steps, both.save_checkpoint_seconds) == (1, None)
    assert (both.keep_checkpoint_max, both.keep_checkpoint_per_n_minutes) == (5, None)
    other = CheckpointConfig(0, 100, None, 5)
    assert (other.save_checkpoint_steps, other.save_checkpoint_seconds) == (0, 100)
    assert (other.keep_checkpoint_max, other.keep_checkpoint_per_n_minutes) == (None, 5)
    assert CheckpointConfig(keep_checkpoint_max=0).keep_checkpoint_max == 1
    rules = {"save_checkpoint_steps": 1, "save_checkpoint_seconds": None, "saved_network": None}
    kept = {"keep_checkpoint_max": 5, "keep_checkpoint_per_n_minutes": None}
    assert CheckpointConfig().get_checkpoint_policy() == {**rules, **kept}


@each_of(
    "count", "save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes"
)
@pytest.mark.parametrize(("value", "kind"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (True, TypeError)])
def test_counts_are_whole_numbers(count, value, kind):
    with pytest.raises(kind, match=f"{count}={value!r}"):
        CheckpointConfig(**{count: value})


test_what_is_refused = refused(
    (lambda: CheckpointConfig(0, 0, 0, 0), ValueError, "both None or 0"),
    (lambda: CheckpointConfig(None, None), ValueError, "nothing would be saved"),
    (lambda: CheckpointConfig(integrated_save=1), TypeError, "integrated_save=1"),
    (lambda: CheckpointConfig(async_save="no"), TypeError, "async_save='no'"),
    (lambda: CheckpointConfig(saved_network=3), TypeError, "saved_network=3"),
    (lambda: CheckpointConfig(append_info="epoch_num"), TypeError, "append_info='epoch_num'"),
    (lambda: CheckpointConfig(append_info=["epoch"]), ValueError, r"append_info=\['epoch'\]"),
    (lambda: CheckpointConfig(append_info=[{}, {}]), TypeError, "at most one dict"),
    (lambda: CheckpointConfig(append_info=[{"a": None}]), TypeError, "'a': None"),
    (lambda: CheckpointConfig(append_info=[3]), TypeError, r"append_info=\[3\]"),
    (lambda: CheckpointConfig(enc_key=b"0123456789abcdef"), NotBuiltYet, "cannot be encrypted"),
    (lambda: CheckpointConfig(enc_key="x"), TypeError, "enc_key"),
    (lambda: CheckpointConfig(remove_redundancy=True), NotBuiltYet, "remove_redundancy"),
    (lambda: CheckpointConfig(format="pickle"), ValueError, "format='pickle'"),
    (lambda: ModelCheckpoint("a/b"), ValueError, "prefix='a/b'"),
    (lambda: ModelCheckpoint(""), ValueError, "prefix=''"),
    (lambda: ModelCheckpoint(3), ValueError, "prefix=3"),
    (lambda: ModelCheckpoint(directory=3), ValueError, "directory=3"),
    (lambda: ModelCheckpoint(directory=""), ValueError, "directory=''"),
    (lambda: ModelCheckpoint(config={"keep_checkpoint_max": 1}), TypeError, "CheckpointConfig"),
    # seed 002 gives format() the function instead of its result
    (
        lambda: ModelCheckpoint(directory=f"./rank_{os.getpid}_ckpt"),
        ValueError,
        r"text of the function getpid.*format\(getpid\(\)\)",
    ),
    (lambda: ModelCheckpoint(directory=f"./rank_{names}_ckpt"), ValueError, r"text of the function names.*names\(\)"),
)
