"""Ctrl-C and the notice of SLURM's, in one process: the signal comes in the middle of a step."""

import signal

import pytest
import pytorch_lightning as pl
import torch

from bertflow.training.checkpoints import RequeueBetweenSteps
from bertflow.training.flow_fit import FlowFit, trainer_options

from .test_progress import RECIPE

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

    def on_before_backward(self, trainer, module, loss):
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGUSR1)
            assert not self.handled, "not in the middle of a step"

    def on_fit_end(self, trainer, module):
        signal.signal(signal.SIGUSR1, self.before)


def fit(embeddings, folder, *callbacks, resume=None, **more):
    made = FlowFit(embeddings, RECIPE)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    options = {
        **quiet,
        "default_root_dir": folder,
        "enable_checkpointing": False,
        **trainer_options(made.recipe, len(made.x)),
        **more,
    }
    made.run(pl.Trainer(**options, callbacks=list(callbacks)), resume)
    return made


HALF = {"val_check_interval": EPOCH // 2}
PAIRS = {"accumulate_grad_batches": 2}


@pytest.mark.parametrize(
    ("step", "handled", "more"),
    [
        (0, (1, False), {}),
        (EPOCH + 7, (EPOCH + 8, True), {}),
        (EPOCH - 1, (EPOCH, True), {}),  # the last step of an epoch: when it was validated
        (EPOCH // 2 - 1, (EPOCH // 2, True), HALF),  # one that is validated in an epoch
        (3, (4, False), PAIRS),  # a step of two batches: not between them
    ],
)
def test_the_handler_waits_for_the_end_of_the_step_and_its_validation(step, handled, more, embeddings, tmp_path):
    lightnings = Lightnings(step)
    whole = fit(embeddings, tmp_path, RequeueBetweenSteps(), lightnings, **more)
    assert lightnings.handled == [handled]
    resumed = fit(embeddings, tmp_path, resume=str(tmp_path / "hpc_ckpt_1.ckpt"), **more)
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


@pytest.fixture(params=["Python's", "ignored", "another's"])
def handler(request):
    """Who handles Ctrl-C; a job in the background begins with it ignored."""
    there = {"Python's": signal.default_int_handler, "ignored": signal.SIG_IGN}.get(request.param, lambda *_: None)
    before = signal.signal(signal.SIGINT, there)
    yield there
    signal.signal(signal.SIGINT, before)


class CtrlC(pl.Callback):
    """Sends SIGINT, or another signal, in the middle of a step, as often as asked."""

    def __init__(self, step, times=1, number=signal.SIGINT):
        self.step, self.times, self.number, self.taken = step, times, number, 0

    def on_before_optimizer_step(self, trainer, module, optimizer):
        for _ in range(self.times if trainer.global_step == self.step else 0):
            signal.raise_signal(self.number)

    def on_exception(self, trainer, module, exception):
        self.taken = trainer.global_step


@pytest.mark.parametrize(("times", "taken"), [(1, 4), (2, 3)])
@pytest.mark.parametrize("handler", ["Python's"], indirect=True)
def test_ctrl_c_waits_for_the_end_of_the_step_and_a_second_one_does_not(times, taken, handler, embeddings, tmp_path):
    ctrl_c = CtrlC(3, times)
    with pytest.raises(KeyboardInterrupt):
        fit(embeddings, tmp_path, ctrl_c)
    assert ctrl_c.taken == taken
    assert signal.getsignal(signal.SIGINT) is handler, "Lightning alone leaves it ignored"


@pytest.mark.parametrize("handler", ["ignored", "another's"], indirect=True)
def test_who_handles_ctrl_c_otherwise_goes_on_doing_so(handler, embeddings, tmp_path):
    ctrl_c = CtrlC(3)
    assert fit(embeddings, tmp_path, ctrl_c).finished
    assert signal.getsignal(signal.SIGINT) is handler


def test_sigterm_waits_for_the_end_of_the_step_where_the_command_line_heeds_it_as_ctrl_c(embeddings, tmp_path):
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sigterm = CtrlC(3, number=signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            fit(embeddings, tmp_path, sigterm)
        assert sigterm.taken == 4
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)
