"""From records to decisions: comparison, regression gates, history, verdicts on published claims."""
