"""The command line: `python -m phaseflip`.

main parses, runs and reports. outcome, text, progress: what a command says. options: what several commands take. The other
files hold the commands. Imports everything but the pytest plugin; nobody imports it but that.
"""
