"""Parts of `experiments.recipe`: tasks, competitors, the search of a grid, records and tables."""
