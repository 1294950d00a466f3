"""The Python interface: what `import leyden` offers, and what the verbs of the command call."""
