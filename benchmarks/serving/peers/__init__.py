"""Engines that people install, as servers beside Pagoda: found, started, watched, compared."""
