"""What is measured, and the plain baselines it is measured against."""
