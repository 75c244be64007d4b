"""The command `pdelab`, ended by Ctrl-C without a traceback also while its modules are loaded."""

import sys


def main() -> None:
    try:
        from pdebook.cli import main as command

        command()
    except KeyboardInterrupt:
        print("pdelab: stopped", file=sys.stderr)
        sys.exit(130)  # as for every command that is stopped


if __name__ == "__main__":
    main()
