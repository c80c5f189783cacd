"""The installation, containers, manifests and dashboards, against the code."""
