"""Run attempts on a Dask cluster: a supervisor submits the attempts, and a guard on each worker runs them."""
