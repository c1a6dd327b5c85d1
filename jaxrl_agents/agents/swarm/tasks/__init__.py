"""Tasks for the swarm: tables, chains and short tables, with budgets of critical steps."""
