"""The jinja2 templates of the reports: no arithmetic, no decisions."""
