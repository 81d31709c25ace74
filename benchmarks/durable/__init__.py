"""Programs of the durable peers. Each runs in an environment of its own, which has nothing of ours."""
