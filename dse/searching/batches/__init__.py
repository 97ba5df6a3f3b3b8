"""The search loop: batches that are proposed, claimed, evaluated and stored in their order."""
