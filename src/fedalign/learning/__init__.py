"""How a model learns from clients that know different labels."""
