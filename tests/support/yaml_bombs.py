"""YAML that stands for more than it says."""

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGED = ALIASES.replace("[x, x, x, x, x, x, x, x, x]", "{x: 1}").replace("[", "{<<: [").replace("]", "]}")
BOMBS = {
    "aliases": (ALIASES, "more than 20,000 nodes"),
    "merged": (MERGED, "more than 20,000 nodes"),
    "cyclic": ("a: &a\n  b: [*a]\n", "line 2: the alias *a is inside"),
    "flow": ("[" * 200_000, "more than 64 deep"),
    "mappings": ("{a: " * 200_000, "more than 64 deep"),
    "block": ("- " * 200_000 + "x", "more than 64 deep"),
    "aliases deep": ("".join(f"- &b{i} [*b{i - 1}]\n" if i else "- &b0 x\n" for i in range(70)), "more than 64 deep"),
    "items": ("[" + "1, " * 200_000 + "]", "more than 20,000 nodes"),
    "number": ("a: 1" + ":1" * 400_000, "a number of 800,001 characters"),
    "quoted number": ('a: !!int "1' + ":1" * 400_000 + '"', "a number of 800,001 characters"),
    "directives": ("".join(f"%TAG !a{i}! tag:x\n" for i in range(50_000)) + "---\na", "more than 100 directives"),
    "bytes": ("a: " + "x" * 5_000_000, "more than 1,048,576 bytes"),
}  # fmt: skip
