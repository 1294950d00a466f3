"""Discovery of this machine's hardware from /sys, /proc and nvidia-smi, for `leyden topology`."""
