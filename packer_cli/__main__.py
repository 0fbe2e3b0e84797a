"""`python -m packer_cli` is `hbpack`."""

from packer_cli.cli.main import run

if __name__ == "__main__":
    run()
