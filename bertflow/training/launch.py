"""What the launcher of this process says of the others: torchrun, or SLURM's ``srun``.

Lightning reads their environment too, but wants to be told the number of devices and nodes once more, and refuses to
start where the two differ. So they are taken from there.
"""

import os
from collections.abc import Mapping

INTERACTIVE = ("bash", "interactive")
"""Names of SLURM jobs in which a user types: what runs there is one process, as Lightning sees it too."""


def launched(environment: Mapping[str, str] | None = None) -> dict[str, int]:
    """Devices a node and nodes, as options of Lightning's Trainer; none where nothing has launched us.

    Args:
        environment: Where the launcher says it; ``os.environ`` by default.
    """
    said = os.environ if environment is None else environment
    if "TORCHELASTIC_RUN_ID" in said:  # before SLURM, since torchrun may be started by it
        per_node, world = int(said["LOCAL_WORLD_SIZE"]), int(said["WORLD_SIZE"])
        return {"devices": per_node, "num_nodes": world // per_node}
    if "SLURM_NTASKS" in said and said.get("SLURM_JOB_NAME") not in INTERACTIVE:
        nodes = int(said.get("SLURM_NNODES", 1))
        return {"devices": int(said["SLURM_NTASKS"]) // nodes, "num_nodes": nodes}
    return {}
