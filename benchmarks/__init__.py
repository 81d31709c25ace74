"""What a step costs, beside what a bare message costs. ``make bench``; never part of the distribution."""
