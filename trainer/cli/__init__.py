"""The command line: verbs, flags, help, tables. Public face: main.main(argv). Imports every other room, imported by
none."""
