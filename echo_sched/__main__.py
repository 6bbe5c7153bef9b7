"""`python -m echo_sched` is the `echo-sched` command."""

from echo_sched import cli

cli.run(cli.main)
