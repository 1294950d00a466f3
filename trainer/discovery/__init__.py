"""What this machine is made of, read from /sys and /proc and asked of nvidia-smi: `leyden topology`."""
