"""What is checked before the first step of a run of several workers: the machines, the folder, the network, the disk.

A worker that trains alone is asked for its device and for room on the disk.

All that only one config and one machine can show was checked before anything started (`checks`), and that all nodes
have the same run and the same software when their agents met (`launch.meeting`).
"""

from .machines import check_machines
from .room import check_room
from .transport import ask_nccl_for_its_log, check_transport

__all__ = ["ask_nccl_for_its_log", "check_machines", "check_room", "check_transport"]
