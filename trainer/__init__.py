"""From a composed config to a finished run: command line, launching, loop, checkpoints, strategies."""
