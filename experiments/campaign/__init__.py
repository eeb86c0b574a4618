"""Campaigns: a row of targets with its levers, which ends as met or TERMINAL."""
