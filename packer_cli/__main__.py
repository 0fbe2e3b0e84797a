"""`python -m packer_cli` is `hbpack`."""

from packer_cli.cli import main

if __name__ == "__main__":
    main()
