import pytest
import torch

from bertflow.encoder import model as devices


@pytest.mark.parametrize(
    ("environment", "gpus", "expected"),
    [
        ({}, 4, "cuda"),
        ({"LOCAL_RANK": "3"}, 4, "cuda:3"),  # torchrun
        ({"SLURM_LOCALID": "2"}, 4, "cuda:2"),
        ({"SLURM_LOCALID": "2"}, 1, "cuda:0"),  # each process is shown its own GPU alone
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 4, "cuda:1"),  # torchrun in a SLURM job
    ],
)
def test_processes_that_share_a_machine_take_a_gpu_each(environment, gpus, expected, monkeypatch):
    for name in devices.LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert devices.resolve_device("auto") == torch.device(expected)
