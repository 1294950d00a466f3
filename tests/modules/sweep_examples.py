"""Callbacks of Hydra's, which run in the process of a sweep."""

import os
import resource
from typing import Any

from hydra.experimental.callback import Callback


class FewDescriptors(Callback):
    """After a trial the process may open no further file."""

    def on_job_end(self, config: Any, job_return: Any, **kwargs: Any) -> None:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
