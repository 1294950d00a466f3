"""A process with a limit of memory and CPU time."""

import subprocess
import sys

USED = """
import os, resource, sys
{imports}
before = os.times()
resource.setrlimit(resource.RLIMIT_AS, 2 * (({bytes} + 512 * 2**20,)))
{code}
after = os.times()
assert after.user + after.system - before.user - before.system < 5, after
"""


def within_limits(code: str, imports: str) -> str:
    """Run code in a process that may take 512 MB and 5 s of CPU beyond its imports. Returns its output."""
    size = "int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')"
    program = USED.format(imports=imports, code=code, bytes=size)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
