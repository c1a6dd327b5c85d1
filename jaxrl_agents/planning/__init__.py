"""Plans a run on chips that are not there: memory, time and cost of its compiled steps."""
