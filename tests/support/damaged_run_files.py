"""Files of a run folder that are garbage."""

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP_ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000))
CONFIGS = {
    "deep": ("[" * 200_000, "deep"),
    "deep block": ("".join("  " * n + "k:\n" for n in range(100)), "deep"),
    "cycle": ("a: &a [*a]\n", "inside of what it repeats"),
    "bomb": (BOMB, "20,000"),
    "deep aliases": (DEEP_ALIASES, "deep"),
    "list": ("- a\n- b\n", "holds no keys"),
    "tag": ("a: !!python/object/apply:os.system [true]\n", "not YAML"),
    "no text": ("\x00\x01", "not YAML"),
}

SUMMARIES = {
    "text for a number": '{"status": "done", "steps": "many", "samples_per_second": 3}',
    "text for a rate": '{"status": "failed", "samples_per_second": "fast"}',
    "number for a text": '{"status": 7}',
    "list": "[1]",
    "no JSON": "{",
    "deep": "[" * 100_000,
    "infinite": '{"status": "done", "steps": 1, "samples_per_second": Infinity}',
    "huge": '{"status": "done", "steps": 1' + "0" * 400 + "}",
    "sessions": '{"status": "failed", "sessions": [{"started_at": "yesterday", "steps": 1, "samples": 1, '
    '"train_seconds": 1}]}',
    "seconds of a session": '{"sessions": [{"started_at": "2026-01-01T00:00:00+00:00", "steps": 1, "samples": 1, '
    '"train_seconds": 1, "seconds": 5}]}',
    "a session without its zone": '{"sessions": [{"started_at": "2026-01-01", "steps": 1, "samples": 1, '
    '"train_seconds": 1}]}',
    "lists": "[" + "[]," * 400_000 + "[]]",
    "no session": '{"status": "failed", "sessions": ["x"]}',
}
