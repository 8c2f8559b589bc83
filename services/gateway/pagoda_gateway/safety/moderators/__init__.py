"""What judges whole texts: services elsewhere, and classifiers in this process."""
