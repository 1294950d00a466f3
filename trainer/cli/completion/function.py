"""`leyden completion bash|zsh|fish`: the shell's function, with the path of the index in it."""

from hashlib import sha256
from pathlib import Path

from ...base.errors import join_names, refuse
from ...base.paths import user_cache
from .index import FILE, write

SHELLS = ("bash", "zsh", "fish")
_HERE = Path(__file__).parent


def print_function(words: list[str]) -> int:
    """
    Raises:
        ConfigError: another shell; the index of an editable install cannot be written.
    """
    if len(words) != 1 or words[0] not in SHELLS:
        raise refuse(
            "completion", f"needs the shell: {join_names(SHELLS)}", " ".join(words) or ..., "leyden completion bash"
        )
    shell = words[0]
    index = str(_index())
    if "'" in index or "\n" in index:
        raise refuse("completion", "the path of the index has a quote or a line break in it", index)
    files = ["function.fish"] if shell == "fish" else ["candidates.sh", f"function.{shell}"]
    text = "".join((_HERE / file).read_text() for file in files)
    first = "#compdef leyden\n" if shell == "zsh" else ""
    print(first + text.replace("@INDEX@", index), end="")
    return 0


def _index() -> Path:
    """The index of the wheel; that of an editable install is written anew, into the user's cache."""
    if FILE.is_file():
        return FILE
    cache = user_cache()
    file = cache / f"completion-{sha256(str(_HERE).encode()).hexdigest()[:12]}.txt"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        write(file)
    except OSError as error:
        text = f"the index of an editable install cannot be written: {error}"
        raise refuse("XDG_CACHE_HOME", text, str(cache), "XDG_CACHE_HOME=FOLDER that you may write to") from None
    return file
