"""Running programs on tests in a sandbox: jobs, commands of other languages, checkers, interactors, and verdicts."""
