"""Recordings of what a stage got and gave, and their replay."""
