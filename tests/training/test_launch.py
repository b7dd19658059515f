import pytest

from bertflow.training.trainer import launched

TORCHRUN = {"TORCHELASTIC_RUN_ID": "1", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "1"}
SLURM = {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "5"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        (TORCHRUN, {"devices": 4, "num_nodes": 2}),
        (SLURM, {"devices": 4, "num_nodes": 2}),
        ({**SLURM, **TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, {"devices": 8, "num_nodes": 1}),  # torchrun in a SLURM job
        ({"SLURM_NTASKS": "1"}, {"devices": 1, "num_nodes": 1}),
        ({**SLURM, "SLURM_JOB_NAME": "bash"}, {}),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, {}),  # started by Lightning, which knows
    ],
)
def test_devices_and_nodes_are_those_of_the_launcher(environment, expected):
    assert launched(environment) == expected
