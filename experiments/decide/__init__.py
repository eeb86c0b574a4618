"""The rules of decision: from the evidence of a run to what it says, step by step."""
