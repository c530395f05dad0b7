"""Trainers as others write them, and what planning does for them."""
