"""A command that another program has started once a rank: rank 0 executes it, the others are workers of its run."""

import argparse
import os
import sys
from collections.abc import Callable

from ..base.errors import ConfigError
from ..base.process import exit_at_once
from ..config.schema import load
from ..launch.external.placement import HostPlacement
from ..launch.external.rendezvous import ExternalRendezvous
from ..launch.external.sizes import servers_of, sizes
from ..launch.external.starters import EXTERNAL, world_of
from .train_verbs import go_on

Verb = Callable[[argparse.Namespace], int]


def run_external(parsed: argparse.Namespace, verb: Verb) -> int:
    """This process's part of the command. Returns its exit code; does not return where a run has failed.

    Raises:
        ConfigError: a mistake, on rank 0 alone, the others return 2.
    """
    from ..entrypoints.external import follow

    with ExternalRendezvous(world_of(os.environ)) as rendezvous:
        code = 1
        try:
            placement = rendezvous.gather()
            code = follow(rendezvous) if rendezvous.world.rank else _execute_part(parsed, verb, rendezvous, placement)
        except ConfigError as error:
            code = 2
            if not rendezvous.in_run:
                raise
            print(error.render(), file=sys.stderr)
        finally:
            rendezvous.announce_end(code)
        if code and rendezvous.in_run:
            exit_at_once(code)  # the threads of a broken process group would abort the interpreter's shutdown
    return code


def _execute_part(
    parsed: argparse.Namespace, verb: Verb, rendezvous: ExternalRendezvous, placement: HostPlacement
) -> int:
    folder = rendezvous.earlier_folder() if rendezvous.world.restarts else None
    if folder is not None:
        config = load(folder)
        strategy = config.strategy
        servers = servers_of(strategy.target, strategy.arguments, config.topology.server_placement)
        return go_on(parsed, folder, [EXTERNAL, *sizes(placement, servers)])
    return verb(parsed)
