"""Workers that another program has started, one process each: torchrun, mpirun, srun, or whatever sets RANK."""
