"""`python -m leyden.trainer.launch.slurm.agent`: job scripts of release 0.1 in the queue start it."""

import runpy

if __name__ == "__main__":
    runpy.run_module("leyden.trainer.entrypoints.slurm_agent", run_name="__main__", alter_sys=True)
