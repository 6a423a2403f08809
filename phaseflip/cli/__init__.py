"""The command line: `python -m phaseflip`. One file a command; `main` parses, runs and reports."""
