"""``python -P -m soong.orchestrator.cli``: how our own processes are started, whatever folder they are started in."""

from soong.orchestrator.cli.main import main

if __name__ == "__main__":
    main()
