"""Files of SimAI and AICB: workloads, bus bandwidths, reports."""
