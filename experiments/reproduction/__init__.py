"""What the tables and figures of the paper share: runs, their records, the runner, the report."""
