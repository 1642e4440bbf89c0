"""How is a linear model learned in a few exchanges of sums? Sums of clients, their solution, refinements, decisions."""
