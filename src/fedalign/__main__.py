"""`python -m fedalign`, for where the environment's scripts are not on the path."""

from fedalign.cli.main import main

main()
