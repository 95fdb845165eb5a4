"""Run attempts on a Dask cluster: the supervisor submits them, a guard on each worker runs them."""
