"""The ``soong`` program."""


def main() -> None:
    """Run the command line; does not return."""
    from soong.orchestrator.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
