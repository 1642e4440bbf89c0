"""How is a deployment started, watched and stopped? One command per side, around the processes of Flower."""
