"""Schedulers: what runs inside a stage, behind one contract."""
