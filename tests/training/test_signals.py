"""Ctrl-C and the notice of SLURM's, in one process: the signal comes in the middle of a step."""

import signal

import pytest
import pytorch_lightning as pl
import torch

from bertflow.training.checkpoints import InterruptBetweenSteps, RequeueBetweenSteps
from bertflow.training.fitting import FlowFit, trainer_options
from bertflow.training.recipe import resolve

RECIPE = resolve("default", {"batch_size": 64, "glow": {"hidden": 8}, "epochs": 2})
EPOCH = 22


class Lightnings(pl.Callback):
    """Sets a handler where Lightning would have set its own, and sends the signal before a step is taken."""

    def __init__(self, step):
        self.step, self.handled = step, []

    def on_fit_start(self, trainer, module):
        def handle(signum, frame):
            trainer.save_checkpoint(f"{trainer.default_root_dir}/hpc_ckpt_{len(self.handled) + 1}.ckpt")
            self.handled.append((trainer.global_step, trainer.callback_metrics.get("val/nll") is not None))

        self.before = signal.signal(signal.SIGUSR1, handle)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGUSR1)
            assert not self.handled, "not in the middle of a step"

    def on_fit_end(self, trainer, module):
        signal.signal(signal.SIGUSR1, self.before)


def fit(embeddings, folder, *callbacks, resume=None):
    made = FlowFit(embeddings, RECIPE)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    options = {
        **quiet,
        "default_root_dir": folder,
        "enable_checkpointing": False,
        **trainer_options(made.recipe, len(made.x)),
    }
    made.run(pl.Trainer(**options, callbacks=list(callbacks)), resume)
    return made


@pytest.mark.parametrize(
    ("step", "handled"),
    [
        (0, (1, False)),
        (EPOCH + 7, (EPOCH + 8, True)),
        (EPOCH - 1, (EPOCH, True)),  # the last step of an epoch: when it was validated
    ],
)
def test_the_handler_waits_for_the_end_of_the_step_and_its_validation(step, handled, embeddings, tmp_path):
    lightnings = Lightnings(step)
    whole = fit(embeddings, tmp_path, RequeueBetweenSteps(), lightnings)
    assert lightnings.handled == [handled]
    resumed = fit(embeddings, tmp_path, resume=str(tmp_path / "hpc_ckpt_1.ckpt"))
    for name, tensor in whole.module.flow.state_dict().items():
        torch.testing.assert_close(resumed.module.flow.state_dict()[name], tensor, rtol=0, atol=0)
    assert resumed.result().record.held_out_bits == whole.result().record.held_out_bits


def test_without_a_handler_of_lightnings_there_is_none_of_ours(embeddings, tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    seen = []

    class Look(pl.Callback):
        def on_train_batch_end(self, *_):
            seen.append(signal.getsignal(signal.SIGUSR1))

    fit(embeddings, tmp_path, RequeueBetweenSteps(), Look())
    assert set(seen) == {before}


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    """As in a terminal; a job in the background begins with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class CtrlC(pl.Callback):
    """Sends SIGINT in the middle of a step, as often as asked."""

    def __init__(self, step, times=1):
        self.step, self.times, self.taken, self.handler = step, times, 0, None

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.handler = signal.getsignal(signal.SIGINT)
        for _ in range(self.times if trainer.global_step == self.step else 0):
            signal.raise_signal(signal.SIGINT)

    def on_exception(self, trainer, module, exception):
        self.taken = trainer.global_step


@pytest.mark.parametrize("step", [0, EPOCH - 1, 2 * EPOCH - 1])
def test_ctrl_c_waits_for_the_end_of_the_step(step, embeddings, tmp_path):
    ctrl_c = CtrlC(step)
    with pytest.raises(KeyboardInterrupt):
        fit(embeddings, tmp_path, InterruptBetweenSteps(), ctrl_c)
    assert ctrl_c.taken == step + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # Lightning alone leaves it ignored


def test_a_second_ctrl_c_does_not_wait(embeddings, tmp_path):
    ctrl_c = CtrlC(3, times=2)
    with pytest.raises(KeyboardInterrupt):
        fit(embeddings, tmp_path, InterruptBetweenSteps(), ctrl_c)
    assert ctrl_c.taken == 3


def test_python_has_its_handler_back_after_the_training(embeddings, tmp_path):
    during = CtrlC(None)
    fit(embeddings, tmp_path, InterruptBetweenSteps(), during)
    assert during.handler is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("other", [signal.SIG_IGN, lambda *_: None])
def test_another_handler_of_ctrl_c_is_left_alone(other, embeddings, tmp_path):
    signal.signal(signal.SIGINT, other)
    during = CtrlC(None)
    fit(embeddings, tmp_path, InterruptBetweenSteps(), during)
    assert during.handler is other is signal.getsignal(signal.SIGINT)
