"""Human-readable output: numbers and names as text, safe HTML, and tables."""
