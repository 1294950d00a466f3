"""Text that a shell or a batch script might execute."""

CANARY = "canary"
TEXTS = [
    "a b", " a  b ", "it's", 'say "x"', "a'b\"c", "''", '""', "'", '"', "$(touch canary)", "`touch canary`",
    "a;touch canary", "a&&touch canary", "a|touch canary", "a||touch canary", "a & touch canary &", ">canary",
    "<(touch canary)", "${IFS}touch${IFS}canary", "$HOME", "';touch canary;'", '";touch canary;"',
    "')$(touch canary)('", "--wrap=touch canary", "--output=canary", "-n5", "--", "50%", "%j", "%%j", "%a%A%x",
    "#SBATCH --nodes=9", "a#b", " #c", "~", "*", "?[a-z]*", "{a,b}", "!!", "a,b=c:d", "é✓", "=",
]  # fmt: skip
"""Text of which each is a run's folder, its job's name, its account and PYTHONPATH."""
CONTROL = ["\n", "\r", "\r\n", "\t", "\0", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\udcff"]
