"""A terminal as a client of the operations: what it shows of tasks and questions, follows and answers."""
