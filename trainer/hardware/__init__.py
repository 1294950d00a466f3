"""Topology: its schema and arithmetic, discovery of this machine, NCCL's and Gloo's environment, CPU
affinity. No torch."""
