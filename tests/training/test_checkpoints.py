import os

import pytest
import torch

from bertflow.training.checkpoints import WholeCheckpoints, newest_checkpoint, steps_of


def test_a_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a" / "last.ckpt"
    WholeCheckpoints().save_checkpoint({"global_step": 3}, path)

    def fail(checkpoint, aside):
        aside.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        WholeCheckpoints().save_checkpoint({"global_step": 4}, path)
    assert steps_of(path) == 3
    assert os.listdir(path.parent) == ["last.ckpt"]  # noqa: PTH208 - hidden files too


def test_the_newest_checkpoint_is_the_one_written_last(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    for age, name in enumerate(["hpc_ckpt_1.ckpt", "epoch=2-step=7.ckpt", "last.ckpt", ".last.ckpt.abc", "notes.txt"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert newest_checkpoint(tmp_path).name == "hpc_ckpt_1.ckpt"


class Harmful:
    def __reduce__(self):
        return (print, ("this was run",))


@pytest.mark.parametrize("content", [{"state_dict": {}}, [1, 2], {"global_step": Harmful()}])
def test_what_is_no_checkpoint_is_refused_and_not_run(content, tmp_path, capsys, refusal):
    torch.save(content, tmp_path / "a.ckpt")
    assert "a.ckpt should be a checkpoint to go on from, but cannot be read: " in refusal(steps_of, tmp_path / "a.ckpt")
    assert not capsys.readouterr().out
