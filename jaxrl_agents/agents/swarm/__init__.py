"""Agent Swarm: an orchestrator that creates sub-agents and runs them in parallel."""
